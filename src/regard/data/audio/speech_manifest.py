"""The user's recordings: WAV or FLAC files and a manifest of their transcripts."""

from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.audio.audio_file import AudioExample, AudioFile
from regard.data.audio.peak_normalization import DITHER, PAD_SECONDS, normalize_recording
from regard.data.source import LoadReport, OnError, permute_index, skip_reason
from regard.data.split import SPLITS, Split, assign_split
from regard.data.table import detect_table, read_table
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError, FileError
from regard.files import iter_lines
from regard.ops import log_mel

SUFFIXES = (".tsv", ".csv", ".jsonl")
AUDIO_COLUMNS = ("audio", "path", "file", "file_name", "filename", "audio_filepath", "wav")
TEXT_COLUMNS = ("text", "sentence", "transcript", "transcription")
KALDI_FILES = ("wav.scp", "text")
LJSPEECH_FILE, LJSPEECH_FOLDER = "metadata.csv", "wavs"
FRAMES_PER_SECOND = 25  # outputs of a recogniser, after subsampling


class ManifestEntry(NamedTuple):
    """A recording, its transcript, its duration in seconds and its sample rate."""

    path: Path
    text: str
    seconds: float
    rate: int


class SpeechManifest:
    """Recordings of a manifest; see `read_manifest` for its formats.

    The header of each file is read on construction; `report` counts unusable ones. Without `valid`
    or `test` a hash of the file name takes a twentieth of `train` for it. Recordings of another
    rate are resampled.

    Args:
        train: a manifest.
        valid: the same for validation.
        test: the same for testing.
        rate: samples per second.
        on_error: "skip" counts bad lines in `report`, "raise" stops at the first.
        max_seconds: longest recording.
        audio_folder: that paths are relative to, such as clips/ of Common Voice; by default the
            folder of the manifest.

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
        audio_folder: str | Path | None = None,
    ):
        self.rate, self.max_seconds, self.report = rate, max_seconds, LoadReport(on_error)
        self.audio_folder = audio_folder
        paths = zip(SPLITS, (train, valid, test), strict=True)
        given: dict[Split, Path] = {split: Path(path) for split, path in paths if path is not None}
        self.manifests = list(given.values())
        self.entries: dict[str, list[ManifestEntry]] = {split: [] for split in SPLITS}
        for split, manifest in given.items():
            for entry in self._load(manifest):
                name = entry.path.name.encode()
                self.entries[assign_split(split, name, given)].append(entry)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Recordings from number `start`; train repeats forever, reshuffled every epoch."""
        entries = self.entries[split]
        if not entries:
            raise ConfigError(f"split: needs one that has recordings, got {split}")
        if split != "train":
            yield from map(self.read, entries[start:])
            return
        for number in count(start):
            yield self.read(entries[self.shuffled_index(number, seed)])

    def shuffled_index(self, number: int, seed: int) -> int:
        """Index of the training entry of a number, in an order that changes every epoch."""
        size = len(self.entries["train"])
        epoch, index = divmod(number, size)
        return permute_index(index, size, f"{seed}/{epoch}")

    def alignable(self, tokenizer: Tokenizer, speed: float = 1.0) -> "SpeechManifest":
        """Without recordings that are too short for their text; its `report` counts them.

        CTC needs one output per label, and a blank between equal ones.

        Args:
            tokenizer: of the labels.
            speed: highest speed factor of training recordings.
        """
        usable = copy(self)
        usable.report, usable.entries = deepcopy(self.report), {split: [] for split in SPLITS}
        for split, entries in self.entries.items():
            for entry in entries:
                labels = tokenizer.encode_input(entry.text)
                needed = len(labels) + sum(a == b for a, b in pairwise(labels))
                seconds = entry.seconds / (speed if split == "train" else 1) + PAD_SECONDS
                if needed < int(seconds * FRAMES_PER_SECOND):
                    usable.entries[split].append(entry)
                else:
                    usable.report.loaded -= 1
                    usable.report.skip(entry.path, None, "too short for its text")
        return usable

    def read(self, entry: ManifestEntry) -> AudioExample:
        """Read a recording as mono, at the rate of the source."""
        wave = AudioFile(entry.path, self.rate).wave()
        return AudioExample(wave, entry.text, self.rate)

    def _load(self, manifest: Path) -> Iterator[ManifestEntry]:
        for line, path, text in read_manifest(manifest, self.report, self.audio_folder):
            entry = self._check(path, text)
            if isinstance(entry, str):
                self.report.skip(manifest.name, line, entry)
            else:
                self.report.loaded += 1
                yield entry

    def _check(self, path: Path, text: str) -> ManifestEntry | str:
        """The entry, or why it cannot be used."""
        if not text.strip():
            return "no text"
        try:
            audio = AudioFile(path, self.rate)
        except FileError as error:
            return skip_reason(error, "an audio file")
        with audio.file as file:
            if file.frames < audio.expected_samples:
                return "truncated"
            if audio.seconds > self.max_seconds:
                return f"longer than {self.max_seconds:g} seconds"
            return ManifestEntry(path, text.strip(), audio.seconds, file.samplerate)


def find_manifests(folder: str | Path) -> tuple[Path, Path | None, Path | None]:
    """The manifests of a folder: train, valid and test, or one; see `read_manifest`.

    Without splits it is `manifest`, as .tsv, .csv or .jsonl, metadata.csv of LJSpeech, or the
    folder itself with wav.scp and text of Kaldi.

    >>> find_manifests("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs manifest.tsv, or train, valid and test.tsv, got none
    """
    root, splits = Path(folder), SPLITS
    paths = {
        name: path
        for name in ("manifest", *splits)
        for suffix in reversed(SUFFIXES)
        if (path := root / f"{name}{suffix}").is_file()
    }
    paths |= {name: root / name for name in splits if _is_kaldi(root / name)}
    if not paths and (root / LJSPEECH_FILE).is_file():
        paths = {"manifest": root / LJSPEECH_FILE}
    if not paths and _is_kaldi(root):
        paths = {"manifest": root}
    if list(paths) == ["manifest"]:
        return paths["manifest"], None, None
    if "train" in paths and set(paths) <= set(splits):
        return paths["train"], paths.get("valid"), paths.get("test")
    got = ", ".join(path.name for path in paths.values()) or "none"
    raise FileError(f"{folder}: needs manifest.tsv, or train, valid and test.tsv, got {got}")


def _is_kaldi(folder: Path) -> bool:
    return all((folder / name).is_file() for name in KALDI_FILES)


def read_manifest(
    manifest: str | Path, report: LoadReport, audio_folder: str | Path | None = None
) -> Iterator[tuple[int, Path, str]]:
    """Line, audio file and transcript of each entry; bad lines are counted in the report.

    Formats: .tsv of `file<tab>text`; .tsv or .csv with a header, such as `path` and `sentence`
    (Common Voice); .jsonl with keys such as `audio` and `text`; LJSpeech (`id|text|…`, recordings
    in wavs/); a folder of Kaldi, whose wav.scp may name files but no commands.
    """
    path = Path(manifest)
    folder = None if audio_folder is None else Path(audio_folder)
    if _is_kaldi(path):
        return _read_kaldi(path, report, folder or path)
    if not path.is_file():
        raise FileError(f"{path}: needs to be a manifest, got no such file")
    return _read_manifest_table(path, report, folder)


def _read_manifest_table(
    path: Path, report: LoadReport, folder: Path | None
) -> Iterator[tuple[int, Path, str]]:
    table = detect_table(path, header=True)
    names = table.find_columns(AUDIO_COLUMNS, TEXT_COLUMNS)
    is_ljspeech = table.delimiter == "|" and names is None
    if table.kind == "jsonl" and names is None:
        raise FileError(f"{path}: needs the keys audio and text, got {', '.join(table.columns)}")
    for row in read_table(path, names or ["1", "2"], header=names is not None):
        if row.error:
            report.skip(path.name, row.line, row.error)
        elif is_ljspeech:
            wavs = folder or path.parent / LJSPEECH_FOLDER
            yield row.line, wavs / f"{row.values[0]}.wav", row.values[1]
        else:
            yield row.line, (folder or path.parent) / row.values[0], row.values[1]


def _read_kaldi(
    folder: Path, report: LoadReport, audio_folder: Path
) -> Iterator[tuple[int, Path, str]]:
    texts: dict[str, str] = {}
    for line in iter_lines(folder / "text"):
        key, _, text = line.decode(errors="replace").strip().partition(" ")
        texts[key] = text
    for number, line in enumerate(iter_lines(folder / "wav.scp"), 1):
        key, _, place = line.decode(errors="replace").strip().partition(" ")
        if not key:
            continue
        if key not in texts or place.endswith("|"):
            reason = "no text" if key not in texts else "a command, which is not run"
            report.skip(f"{folder.name}/wav.scp", number, reason)
        else:
            yield number, audio_folder / place, texts[key]


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
            "target": tokenizer.encode_input(example.text),
        }

    return encode
