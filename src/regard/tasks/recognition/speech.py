"""Sound to text while it is heard: Morse code, and strings of spoken digits."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from regard.data import CharTokenizer, Morse, Tokenizer
from regard.data.audio.audio_batches import AudioBatches, morse_batches
from regard.data.audio.augmentation import SpeechAugmentation
from regard.data.audio.digit_frames import digit_batches
from regard.data.audio.digits import PHONES, SpokenDigits
from regard.data.audio.morse.keying import MORSE_CODE
from regard.models import Recogniser, recogniser_tiny
from regard.models.config import check_positive
from regard.tasks.recipe import BatchUnit, DataModule, EvalSplit, Recipe
from regard.tasks.recognition.evaluator import RecognitionEvaluator
from regard.tasks.registry import register
from regard.train.config import TrainConfig
from regard.train.device import select_device

FIT = 8  # batches over which the scale of the features is measured


@dataclass(frozen=True, kw_only=True)
class _Heard(DataModule):
    """What all that is heard shares: the loss, and features brought to one scale."""

    objective: ClassVar[str] = "ctc"
    batch_unit: ClassVar[BatchUnit] = "batch_size"

    def prepare_model(self, model: Recogniser, tokenizer: Tokenizer, train: TrainConfig) -> None:
        """Measure the scale of the features on some of the training sounds."""
        size = min(self.batch_limit(train), 16)
        cpu = replace(train, device="cpu", precision="auto", batch_size=size)
        stream = iter(self.batches(tokenizer, cpu))
        batches = [next(stream) for _ in range(FIT)]
        longest = max(batch["frames"].shape[1] for batch in batches)
        frames = [
            torch.nn.functional.pad(batch["frames"], (0, 0, 0, longest - batch["frames"].shape[1]))
            for batch in batches
        ]
        lengths = torch.cat([batch["frames_lengths"] for batch in batches])
        model.standardise.fit(model.normalize_features(torch.cat(frames))[0], lengths)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> AudioBatches:
        """So many sounds together as the training's `tokens` say."""
        raise NotImplementedError


@register
@dataclass(frozen=True, kw_only=True)
class MorseData(_Heard):
    """Which Morse code: limits of length, speed, pitch and noise; `spared` speeds are for tests.

    Training sends at every speed from `slowest` to `fastest` words a minute but those between each
    pair of `spared`; valid and test send at these alone, with a noise of `test_snr` decibels. With
    `radio` the sounds are as hands send and receivers play them (`data.Morse`); in a share of
    `empty` training sounds nobody sends.

    >>> MorseData().held_out_bands
    ((17.0, 19.0), (26.0, 29.0))
    """

    min_letters: int = 3
    max_letters: int = 12  # letters
    min_wpm: float = 8.0
    max_wpm: float = 45.0
    held_out_wpm: tuple[float, ...] = (17.0, 19.0, 26.0, 29.0)
    min_snr: float = -3.0  # decibels, the most noise that is trained on
    test_snr: float = 0.0
    min_pitch: float = 250.0  # hertz
    max_pitch: float = 1300.0
    radio_effects: bool = True
    empty_fraction: float = 0.04
    n_mels: int = 40
    valid_size: int = 200
    test_size: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "min_letters", "max_letters", "n_mels", "valid_size", "test_size")
        self.source()  # its errors, now

    @property
    def held_out_bands(self) -> tuple[tuple[float, float], ...]:
        """The speeds that are never trained on."""
        return tuple(zip(self.held_out_wpm[::2], self.held_out_wpm[1::2], strict=True))

    def source(self, **changes: Any) -> Morse:
        """What sends."""
        told: dict[str, Any] = {
            "letters": (self.min_letters, self.max_letters),
            "wpm": (self.min_wpm, self.max_wpm),
            "snr": (self.min_snr, 20.0),
            "pitch": (self.min_pitch, self.max_pitch),
            "radio_effects": self.radio_effects,
            "empty_fraction": self.empty_fraction,
            "held_out_wpm": self.held_out_bands,
        }
        return Morse(**(told | changes))

    def tokenizer(self, seed: int) -> Tokenizer:
        """Every sign there is a code for, and the space."""
        return CharTokenizer.train(["".join(MORSE_CODE) + " "])

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the signs, and the features of the data."""
        return replace(model, vocab=tokenizer.vocab, n_mels=self.n_mels, sample_rate=8000)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> AudioBatches:
        """So many sounds together as the training's `tokens` say."""
        return morse_batches(
            self.source(), tokenizer, mels=self.n_mels, batch_size=self.batch_limit(train), device=select_device(train),
            seed=train.seed, rank=rank, world_size=world_size,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> RecognitionEvaluator:
        """Character error in noise, at speeds that were never trained on."""
        bands = self.held_out_bands or ((self.min_wpm, self.max_wpm),)
        count = -(-(self.valid_size if split == "valid" else self.test_size) // len(bands))
        noise = self.test_snr, self.test_snr
        sounds = [
            sound
            for band in bands
            for sound in self.source(
                wpm=band, snr=noise, held_out_wpm=(), empty_fraction=0, eval_size=count
            ).examples(split, 0)
        ]
        return RecognitionEvaluator(sounds, tokenizer)


@register
@dataclass(frozen=True, kw_only=True)
class DigitsData(_Heard):
    """Strings of spoken digits from a folder of takes, as of the Free Spoken Digit Dataset.

    The `held` speakers are for the test. Without any, all are learnt from, and the test is of
    valid takes. With `agree` the two passes over a batch hear its strings in two voices.

    >>> DigitsData(folder="fsdd").held_out_speakers
    ('george',)
    """

    folder: str = "fsdd"
    held_out_speakers: tuple[str, ...] = ("george",)
    n_mels: int = 40
    vtlp: float = 0.12
    eq: float = 3.0  # five voices came by five microphones, up to 15 dB apart in a band
    spec_augment: int = 0  # a six whose s is hidden is an eight
    tempo_range: float = 0.45
    time_warp: float = 0.6  # of the pace inside a digit
    gain_jitter: float = 0.2  # of what is softer than a vowel
    trim_fraction: float = 0.3  # takes are cut out of silence, soft consonants with it
    min_speed: float = 0.9  # pitch and formants go with the speed; the pace does not
    max_speed: float = 1.1
    speaker_interpolation: float = 0.5  # of all strings, those of a voice between two
    speaker_mixing: float = 0.3  # those whose digits are each of any speaker
    reverb: float = 0.5
    noise_tilt: float = 1.0
    min_snr: float = 15.0  # decibels, the most noise that is trained on
    phones: bool = True  # whether the sounds of the digits are learnt beside the digits
    valid_size: int = 200
    test_size: int = 600

    def __post_init__(self) -> None:
        check_positive(self, "n_mels", "valid_size", "test_size")
        _ = self.augmentation  # its errors, now

    def source(self, count: int = 1) -> SpokenDigits:
        """What speaks."""
        return _digits(
            self.folder,
            self.held_out_speakers,
            (self.min_speed, self.max_speed),
            self.min_snr,
            count,
        )

    def tokenizer(self, seed: int) -> Tokenizer:
        """The ten digits."""
        return CharTokenizer.train(["0123456789"])

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the digits, and the features of the data."""
        rate = self.source().rate
        phones = 1 + len(PHONES) if self.phones else 0
        return replace(
            model, vocab=tokenizer.vocab, n_mels=self.n_mels, sample_rate=rate, phones=phones
        )

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> AudioBatches:
        """So many strings together as the training's `tokens` say."""
        return digit_batches(
            self.source(), tokenizer, mels=self.n_mels, batch_size=self.batch_limit(train), augmentation=self.augmentation,
            second_view=train.rdrop > 0, phones=self.phones, device=select_device(train), seed=train.seed,
            rank=rank, world_size=world_size,
        )  # fmt: skip

    @property
    def augmentation(self) -> SpeechAugmentation:
        """What is done to the training sounds."""
        return SpeechAugmentation(
            **{field.name: getattr(self, field.name) for field in fields(SpeechAugmentation)}
        )

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> RecognitionEvaluator:
        """Word error (a digit is a word) of voices that were never heard."""
        source = self.source(self.valid_size if split == "valid" else self.test_size)
        source_split: EvalSplit = split if self.held_out_speakers else "valid"
        return RecognitionEvaluator(list(source.examples(source_split, 0)), tokenizer)


@lru_cache(4)
def _digits(
    folder: str, held: tuple[str, ...], speed: tuple[float, float], snr: float, count: int
) -> SpokenDigits:
    return SpokenDigits(
        folder, held_out_speakers=held, speed=speed, snr=(snr, 45.0), eval_size=count
    )


@register
def morse() -> Recipe:
    """Morse code as it is heard, in as much noise as tone, at speeds never trained on.

    >>> morse().model.chunk  # strictly causal
    1
    """
    return Recipe(
        name="morse",
        data=MorseData(),
        model=recogniser_tiny(44, dim=128, layers=4, left_chunks=64, dropout=0.0),
        train=TrainConfig(
            steps=2111, batch_size=64, lr=1e-3, warmup=175, betas=(0.9, 0.98),
            evaluate_every=351, save_every=1053, log_every=50,
        ),
    )  # fmt: skip


@register
def digits() -> Recipe:
    """Strings of spoken digits as they are heard, of a voice never heard; takes are in `folder`.

    >>> digits().data.held_out_speakers
    ('george',)
    """
    return Recipe(
        name="digits",
        data=DigitsData(),
        model=recogniser_tiny(
            14, dim=256, layers=6, left_chunks=32, dropout=0.3, cmvn_depth=12.0, filters=32
        ),
        train=TrainConfig(
            steps=6000, batch_size=48, lr=1e-3, warmup=300, weight_decay=0.05, betas=(0.9, 0.98), rdrop=0.5,
            evaluate_every=3000, save_every=3000, log_every=50,
        ),
    )  # fmt: skip
