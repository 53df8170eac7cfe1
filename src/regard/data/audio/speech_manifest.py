"""Own recordings: WAV or FLAC files and a manifest that says what is said in each."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


class SpeechManifest:
    """Recordings named in a manifest: TSV, `file<tab>text`, or JSON lines with `audio` and `text`.

    Files are looked for beside the manifest. Each is opened once, when the source is made, to see
    whether it is sound of this rate; what is not is in `report`. Without `valid` and `test` a
    recording goes by a hash of its file's name.

    >>> SpeechManifest("nothing.tsv", rate=8000)
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nothing.tsv: needs to be a manifest, got nothing there
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
        self.entries: dict[str, list[tuple[Path, str]]] = {"train": [], "valid": [], "test": []}
        given = {"train": train, "valid": valid, "test": test}
        for split, manifest in given.items():
            for path, text in self._checked(Path(manifest)) if manifest is not None else ():
                self.entries[split if valid is not None else hash_split(path.name.encode())].append(
                    (path, text)
                )

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Recordings from the one numbered `start`: for ever for train, once otherwise."""
        rows = self.entries[split]
        if not rows:
            raise ConfigError(f"split: needs one that has recordings, got {split}")
        if split != "train":
            yield from (self._read(*row) for row in rows[start:])
            return
        number = start
        while True:
            turn, index = divmod(number, len(rows))
            yield self._read(*rows[permute_index(index, len(rows), f"{seed}/{turn}")])
            number += 1

    def _checked(self, manifest: Path) -> Iterator[tuple[Path, str]]:
        for number, name, text in _manifest(manifest, self.report):
            path = manifest.parent / name
            if wrong := self._wrong(path, text):
                self.report.skip(manifest.name, number, wrong)
            else:
                self.report.loaded += 1
                yield path, text.strip()

    def _wrong(self, path: Path, text: str) -> str:
        import soundfile  # loads a C library: only who reads recordings waits for it

        if not text.strip():
            return "no text"
        if not path.is_file():
            return "no such file"
        try:
            about = soundfile.info(path)
        except (soundfile.LibsndfileError, OSError):
            return "not a sound file"
        if about.samplerate != self.rate:
            return f"{about.samplerate} samples a second instead of {self.rate}"
        if not 0 < about.duration <= self.max_seconds:
            return f"not from 0 to {self.max_seconds:g} seconds long"
        return ""

    def _read(self, path: Path, text: str) -> AudioExample:
        import soundfile

        try:
            wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, OSError) as error:
            raise FileError(
                f"{path}: needs to be whole, as when it was opened, got {error}"
            ) from error
        return AudioExample(torch.from_numpy(wave.mean(1)), text, rate)


def _manifest(file: Path, report: LoadReport) -> Iterator[tuple[int, str, str]]:
    if not file.is_file():
        raise FileError(f"{file}: needs to be a manifest, got nothing there")
    with open_binary(file) as opened:
        lines = (line for some in iter_utf8_lines(iter_chunks(opened), file) for line in some)
        for number, raw in enumerate(lines, 1):
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                report.skip(file.name, number, f"not UTF-8 ({error.reason})")
                continue
            if not line.strip():
                continue
            if found := _entry(line):
                yield number, *found
            else:
                report.skip(file.name, number, "neither `file<tab>text` nor JSON of the two")


def _entry(line: str) -> tuple[str, str] | None:
    if not line.startswith("{"):
        name, tab, text = line.partition("\t")
        return (name, text) if tab else None
    try:
        held = parse_json(line)
        return str(held["audio"]), str(held["text"])
    except (ValueError, KeyError):
        return None


def speech_preprocessor(
    tokenizer: Tokenizer, *, mels: int = 80, dither: float = DITHER
) -> Callable[[AudioExample], dict[str, Any]]:
    """What makes a sound ready for a recogniser: log-mel frames, and its text as labels.

    The sound is normalised and padded as where the model runs (`normalize_recording`), so that it is
    trained on what it will hear. A model with a `level` of its own takes dither=0.

    >>> encode = speech_preprocessor(rg.data.ByteTokenizer(), mels=4)
    >>> ready = encode(AudioExample(torch.zeros(8000), "E", 8000))
    >>> ready["frames"].shape, ready["target"]  # a second of sound, and one of silence
    (torch.Size([198, 4]), [73])
    """

    def encode(sound: AudioExample) -> dict[str, Any]:
        wave = normalize_recording(sound.wave, sound.rate, dither=dither)
        return {
            "frames": log_mel(wave, sound.rate, n_mels=mels),
            "target": tokenizer.encode(sound.text),
        }

    return encode
