"""Your own recordings: a folder of WAV or FLAC files with a manifest of transcripts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, NamedTuple, Unpack

from regard.data import (
    AudioBatches,
    SpeechAugmentation,
    SpeechManifest,
    Split,
    Tokenizer,
    TokenizerType,
    normalize_text,
    train_tokenizer,
)
from regard.data.audio.peak_normalization import DITHER
from regard.data.audio.speech_batches import speech_batches, speech_frames
from regard.data.audio.speech_manifest import KALDI_FILES, find_manifests
from regard.data.split import SPLITS, in_share
from regard.errors import ConfigError, FileError
from regard.files import open_binary
from regard.models import RecogniserConfig, WordRecogniserConfig
from regard.models.config import check_choices, check_positive
from regard.tasks.base import DataContents, EncodedCache, EvalSplit, Shard
from regard.tasks.baselines.kernel_speech import fit_speech_kernel
from regard.tasks.recognition.audio import AudioTask
from regard.tasks.recognition.evaluator import RecognitionEvaluator
from regard.tasks.registry import task
from regard.tasks.text_tokenizer import encode_train_split
from regard.train.config import TrainConfig
from regard.train.distributed import select_device

MAX_TEXTS, MIN_COUNT = 100, 5  # of a closed set: so few texts, each recorded so often
SPACED_TYPES = ("words", "bpe", "unigram")  # tokenizers whose words have their leading space


@task("speech")
@dataclass(frozen=True, kw_only=True)
class SpeechTask(AudioTask):
    """Recordings of a folder with manifest.tsv, or with train.tsv, valid.tsv and test.tsv.

    A line of a manifest is `file<tab>text`; `data.audio.speech_manifest.read_manifest` lists the
    other formats. Without one for valid or test, 5% of `train` are taken for it, by a hash of the
    file name.

    Args:
        folder: of the manifests.
        train, valid, test: manifests of other names in `folder`.
        audio_folder: folder in `folder` that paths of recordings are relative to; "" is that of
            the manifest.
        sample_rate: of the model; recordings of another rate are resampled.
        lowest_rate: of the recordings trained on, but for the lowest 5%; one of a lower rate has a
            narrower band and is warned of. 0 takes it from the data; a run keeps it.
        n_mels: log-mel bands.
        max_seconds: longest recording.
        tokenizer_type: units of the transcripts.
        vocab_size: largest vocabulary of words, byte pairs or unigram.
        train_share: of the train recordings that are used, chosen at random.
        speeds: speed factors of training recordings (speed perturbation).
        min_snr: lowest signal-to-noise ratio of added noise in dB; None adds none.
        online_cmvn: whether the model normalises its features online (its `cmvn_depth`); if not,
            recordings are dithered.
        augmentation: of the log-mel frames, such as `vtlp` and `spec_augment`.

    >>> SpeechTask(folder="recordings").augmentation.spec_augment
    2
    """

    paths: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = ""
    train: str = ""
    valid: str = ""
    test: str = ""
    audio_folder: str = ""
    sample_rate: int = 16000
    lowest_rate: int = 0
    n_mels: int = 80
    max_seconds: float = 30.0
    tokenizer_type: TokenizerType = "characters"
    vocab_size: int = 1000
    train_share: float = 1.0
    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    min_snr: float | None = 10.0
    online_cmvn: bool = True
    augmentation: SpeechAugmentation = field(
        default_factory=lambda: SpeechAugmentation(eq=1.0, spec_augment=2, reverb=0.3)
    )

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "sample_rate", "n_mels", "vocab_size")
        if not 0 < self.train_share <= 1:
            raise ConfigError(f"train_share: needs more than 0, at most 1, got {self.train_share}")
        if not self.speeds or min(self.speeds) <= 0:
            raise ConfigError(f"speeds: need one or more above 0, got {self.speeds}")
        if (self.valid or self.test) and not self.train:
            given = " and ".join(name for name in SPLITS if getattr(self, name))
            raise ConfigError(f"train: needs a manifest beside {given}, got none")

    def fit(self, seed: int) -> "SpeechTask":
        """With the lowest sample rate of the recordings trained on."""
        rates = sorted(entry.rate for entry in self.source().entries["train"])
        if self.lowest_rate or not rates:
            return self
        return replace(self, lowest_rate=min(rates[len(rates) // 20], self.sample_rate))

    @property
    def trained_rate(self) -> int:
        return self.lowest_rate or self.sample_rate

    def source(self) -> SpeechManifest:
        """The recordings; its `report` counts skipped ones."""
        if not self.folder:
            raise FileError("folder: needs a folder with a manifest, got none; try folder=PATH")
        root = Path(self.folder)
        valid, test = (root / name if name else None for name in (self.valid, self.test))
        manifests = (root / self.train, valid, test) if self.train else find_manifests(root)
        audio = root / self.audio_folder if self.audio_folder else None
        return _load(manifests, audio, self.sample_rate, self.max_seconds, self.train_share)

    def _alignable(self, tokenizer: Tokenizer) -> SpeechManifest:
        return self.source().alignable(tokenizer, max(self.speeds))

    def data_warnings(self) -> list[str]:
        report = self._alignable(self.tokenizer(0)).report
        return [str(report)] if report.skipped else []

    def contents(self) -> DataContents:
        source = self.source()
        if source.entries["train"]:
            source = self._alignable(self.tokenizer(0))
        recordings: Iterator[tuple[Split, Recording]] = (
            (split, Recording(_fingerprint(x.path), x.text, x.seconds, x.rate, x.path.name))
            for split in SPLITS
            for x in source.entries[split]
        )
        return DataContents(recordings, source.report, source.manifests)

    def data_files(self) -> list[Path]:
        source = self.source()
        recordings = [entry.path for split in SPLITS for entry in source.entries[split]]
        kaldi = [x / name for x in source.manifests if x.is_dir() for name in KALDI_FILES]
        return [x for x in source.manifests if x.is_file()] + kaldi + recordings

    def tokenizer(self, seed: int) -> Tokenizer:
        """A tokenizer of the training transcripts."""
        texts = self.train_texts
        if not texts:
            reasons = self.source().report.summary or "empty manifest"
            raise FileError(f"{self.folder}: needs recordings to train on, got none: {reasons}")
        # a word is one label, wherever it stands: with its space, which joins it to the one before
        steps = ("leading_space",) if self.tokenizer_type in SPACED_TYPES else ()
        texts = [normalize_text(text, steps) for text in texts]
        tokenizer = train_tokenizer(self.tokenizer_type, texts, self.vocab_size)
        tokenizer.normalizers = steps
        return tokenizer

    def resolve(
        self, model: RecogniserConfig | WordRecogniserConfig, tokenizer: Tokenizer
    ) -> RecogniserConfig | WordRecogniserConfig:
        if isinstance(model, WordRecogniserConfig):
            for text in set(self.train_texts):
                if (count := len(tokenizer.encode_input(text))) != 1:
                    raise ConfigError(
                        "tokenizer_type: needs one label per transcript for a recogniser of single "
                        f"words, got {self.tokenizer_type} with {count} for {text!r}; try "
                        "tokenizer_type = 'words', or type = 'recogniser'"
                    )
        if self.online_cmvn != (model.cmvn_depth is not None):
            raise ConfigError(
                f"online_cmvn: needs to be {not self.online_cmvn} for a model with "
                f"cmvn_depth={model.cmvn_depth}, got {self.online_cmvn}"
            )
        return replace(
            model, vocab=tokenizer.vocab, n_mels=self.n_mels, sample_rate=self.sample_rate
        )

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]
    ) -> AudioBatches:
        """Endless augmented batches; with R-Drop the second pass sees another augmentation."""
        return self.cached_batches(tokenizer, train, EncodedCache(), **shard)

    def cached_batches(
        self, tokenizer: Tokenizer, train: TrainConfig, cache: EncodedCache, **shard: Unpack[Shard]
    ) -> AudioBatches:
        """`batches` from a cache of log-mel frames."""
        source = self._alignable(tokenizer)
        files = [entry.path for entry in source.entries["train"]]
        frames = encode_train_split(
            self, tokenizer, speech_frames(source, self.n_mels, self.speeds), files,
            cache=cache, count=lambda: len(files) * len(self.speeds),
        )  # fmt: skip
        return speech_batches(
            source, tokenizer, mels=self.n_mels, batch_size=self.batch_limit(train), frames=frames,
            augmentation=self.augmentation, speeds=self.speeds, min_snr=self.min_snr,
            dither=0.0 if self.online_cmvn else DITHER, second_view=train.rdrop > 0,
            device=select_device(train), seed=train.seed, **shard,
        )  # fmt: skip

    @property
    def train_texts(self) -> list[str]:
        """The transcript of each training recording."""
        return [entry.text for entry in self.source().entries["train"]]

    @property
    def is_closed_set(self) -> bool:
        """Whether all that is said is one of few texts, each recorded several times."""
        counts = Counter(self.train_texts)
        return len(counts) <= MAX_TEXTS and min(counts.values(), default=0) >= MIN_COUNT

    def baseline(self, split: EvalSplit) -> tuple[str, list[str]]:
        """A kernel machine on log-mel statistics where few texts are said, else the most frequent.

        No other simple model transcribes; of equally frequent texts it is the shortest.
        """
        source = self._alignable(self.tokenizer(0))
        if not self.is_closed_set:
            counts = Counter(entry.text for entry in source.entries["train"])
            text = min(counts, key=lambda text: (-counts[text], len(text), text))
            return "the most frequent transcript", [text] * len(source.entries[split])
        train, held_out = (list(map(source.read, source.entries[x])) for x in ("train", split))
        return "kernel machine on log-mel statistics", fit_speech_kernel(train, held_out)

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> RecognitionEvaluator:
        return RecognitionEvaluator(list(self._alignable(tokenizer).examples(split, 0)), tokenizer)


class Recording(NamedTuple):
    """A recording in `contents`: a fingerprint of its file, text, seconds, rate and file name."""

    audio: bytes
    text: str
    seconds: float
    rate: int
    name: str


def _fingerprint(file: Path) -> bytes:
    """Hash of the size and the first 64 KiB, so that copies under other names are found."""
    with open_binary(file) as opened:
        return blake2b(b"%d " % file.stat().st_size + opened.read(1 << 16), digest_size=8).digest()


@lru_cache(4)
def _load(
    manifests: tuple[Path, Path | None, Path | None],
    audio_folder: Path | None,
    rate: int,
    max_seconds: float,
    share: float,
) -> SpeechManifest:
    source = SpeechManifest(
        *manifests, rate=rate, max_seconds=max_seconds, audio_folder=audio_folder
    )
    rows = enumerate(source.entries["train"])
    source.entries["train"] = [entry for n, entry in rows if in_share(n, share)]
    return source
