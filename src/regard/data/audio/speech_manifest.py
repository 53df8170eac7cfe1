"""Your own recordings: WAV or FLAC files and a manifest of their transcripts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.data.audio.example import AudioExample
from regard.data.audio.peak_normalization import DITHER, normalize_recording
from regard.data.load_report import LoadReport, OnError
from regard.data.source import permute_index
from regard.data.split import Split, hash_split
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError, FileError
from regard.files import iter_chunks, iter_utf8_lines, open_binary, parse_json
from regard.ops import log_mel

SUFFIXES = (".tsv", ".jsonl")


class ManifestEntry(NamedTuple):
    """A recording, its transcript and its duration in seconds."""

    path: Path
    text: str
    seconds: float


class SpeechManifest:
    """Recordings of a manifest: TSV, `file<tab>text`, or JSON lines with `audio` and `text`.

    Paths are relative to the manifest. The header of each file is read on construction; `report`
    counts unusable ones. Without `valid` and `test` a hash of the file name assigns each recording
    to a split.

    Args:
        train: a manifest.
        valid: the same for validation; needs `test` too.
        test: the same for testing.
        rate: samples per second; recordings of another rate are skipped.
        on_error: "skip" counts bad lines in `report`, "raise" stops at the first.
        max_seconds: longest recording.

    >>> SpeechManifest("nothing.tsv", rate=8000)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.tsv: needs to be a manifest, got no such file
    """

    def __init__(
        self,
        train: str | Path,
        valid: str | Path | None = None,
        test: str | Path | None = None,
        *,
        rate: int,
        on_error: OnError = "skip",
        max_seconds: float = 60.0,
    ):
        if (valid is None) != (test is None):
            raise ConfigError("valid, test: need to be given both or not at all, got one of them")
        self.rate, self.max_seconds, self.report = rate, max_seconds, LoadReport(on_error)
        self.entries: dict[str, list[ManifestEntry]] = {"train": [], "valid": [], "test": []}
        for split, manifest in (("train", train), ("valid", valid), ("test", test)):
            for entry in self._load(Path(manifest)) if manifest is not None else ():
                by_hash = hash_split(entry.path.name.encode())
                self.entries[split if valid is not None else by_hash].append(entry)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Recordings from number `start`; train repeats forever, reshuffled every epoch."""
        entries = self.entries[split]
        if not entries:
            raise ConfigError(f"split: needs one that has recordings, got {split}")
        if split != "train":
            yield from map(self.read, entries[start:])
            return
        number = start
        while True:
            yield self.read(self.shuffled_entry(number, seed))
            number += 1

    def shuffled_entry(self, number: int, seed: int) -> ManifestEntry:
        """Training entry of a number, in an order that changes every epoch."""
        entries = self.entries["train"]
        epoch, index = divmod(number, len(entries))
        return entries[permute_index(index, len(entries), f"{seed}/{epoch}")]

    def read(self, entry: ManifestEntry) -> AudioExample:
        """Read a recording as mono."""
        import soundfile

        try:
            wave, rate = soundfile.read(entry.path, dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, OSError) as error:
            raise FileError(
                f"{entry.path}: needs to be readable, as when the manifest was loaded, got {error}"
            ) from error
        return AudioExample(torch.from_numpy(wave.mean(1)), entry.text, rate)

    def _load(self, manifest: Path) -> Iterator[ManifestEntry]:
        for line, name, text in _read_lines(manifest, self.report):
            entry = self._check(manifest.parent / name, text)
            if isinstance(entry, str):
                self.report.skip(manifest.name, line, entry)
            else:
                self.report.loaded += 1
                yield entry

    def _check(self, path: Path, text: str) -> ManifestEntry | str:
        """The entry, or why it cannot be used."""
        import soundfile  # imported on first use: loads a C library

        if not text.strip():
            return "no text"
        if not path.is_file():
            return "no such file"
        try:
            info = soundfile.info(path)
        except (soundfile.LibsndfileError, OSError):
            return "not an audio file"
        if info.samplerate != self.rate:
            return f"{info.samplerate} Hz instead of {self.rate}"
        if not 0 < info.duration <= self.max_seconds:
            return f"not from 0 to {self.max_seconds:g} seconds long"
        return ManifestEntry(path, text.strip(), info.duration)


def find_manifests(folder: str | Path) -> tuple[Path, Path | None, Path | None]:
    """The manifests of a folder: train, valid and test, or one `manifest`, as .tsv or .jsonl.

    >>> find_manifests("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs manifest.tsv, or train, valid and test.tsv, got none
    """
    names = ("manifest", "train", "valid", "test")
    paths = {
        name: path
        for name in names
        for suffix in reversed(SUFFIXES)
        if (path := Path(folder) / f"{name}{suffix}").is_file()
    }
    if "manifest" in paths and len(paths) == 1:
        return paths["manifest"], None, None
    if set(paths) == {"train", "valid", "test"}:
        return paths["train"], paths["valid"], paths["test"]
    got = ", ".join(path.name for path in paths.values()) or "none"
    raise FileError(f"{folder}: needs manifest.tsv, or train, valid and test.tsv, got {got}")


def _read_lines(file: Path, report: LoadReport) -> Iterator[tuple[int, str, str]]:
    if not file.is_file():
        raise FileError(f"{file}: needs to be a manifest, got no such file")
    with open_binary(file) as opened:
        lines = (line for chunk in iter_utf8_lines(iter_chunks(opened), file) for line in chunk)
        for number, raw in enumerate(lines, 1):
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                report.skip(file.name, number, f"not UTF-8 ({error.reason})")
                continue
            if not line.strip():
                continue
            if fields := _parse(line):
                yield number, *fields
            else:
                report.skip(file.name, number, "neither `file<tab>text` nor JSON of the two")


def _parse(line: str) -> tuple[str, str] | None:
    if not line.startswith("{"):
        name, tab, text = line.partition("\t")
        return (name, text) if tab else None
    try:
        data = parse_json(line)
        return str(data["audio"]), str(data["text"])
    except (ValueError, KeyError):
        return None


def speech_preprocessor(
    tokenizer: Tokenizer, *, mels: int = 80, dither: float = DITHER
) -> Callable[[AudioExample], dict[str, Any]]:
    """Encoder of recordings for CTC: log-mel frames, and the transcript as labels.

    Recordings are normalised and padded as for inference (`normalize_recording`). A model with
    online CMVN takes dither=0.

    >>> encode = speech_preprocessor(rg.data.ByteTokenizer(), mels=4)
    >>> encoded = encode(AudioExample(torch.zeros(8000), "E", 8000))
    >>> encoded["frames"].shape, encoded["target"]  # one second, and one of padding
    (torch.Size([198, 4]), [73])
    """

    def encode(example: AudioExample) -> dict[str, Any]:
        wave = normalize_recording(example.wave, example.rate, dither=dither)
        return {
            "frames": log_mel(wave, example.rate, n_mels=mels),
            "target": tokenizer.encode(example.text),
        }

    return encode
