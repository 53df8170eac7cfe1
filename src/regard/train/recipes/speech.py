"""Sound to text while it is heard: Morse code, and strings of spoken digits."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch

from regard.data import Characters, Morse, Tokenizer
from regard.data.changes import Change
from regard.data.digits import PHONES, Digits
from regard.data.keying import CODES
from regard.data.sound_batches import SoundBatches, morse_batches
from regard.data.voices import digit_batches
from regard.models import Recogniser, recogniser_tiny
from regard.models.config import check_positive
from regard.train.config import TrainConfig
from regard.train.evaluation_speech import SpeechScores
from regard.train.loop import device_of
from regard.train.recipes.recipe import Part, Recipe

FIT = 8  # batches over which the scale of the features is measured


@dataclass(frozen=True, kw_only=True)
class _Heard:
    """What all that is heard shares: the loss, and features brought to one scale."""

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "ctc"

    def prepare(self, model: Recogniser, tokenizer: Tokenizer, train: TrainConfig) -> None:
        """Measure the scale of the features on some of the training sounds."""
        cpu = replace(train, device="cpu", precision="auto", tokens=min(train.tokens, 16))
        stream = iter(self.batches(tokenizer, cpu))
        batches = [next(stream) for _ in range(FIT)]
        longest = max(batch["frames"].shape[1] for batch in batches)
        frames = [
            torch.nn.functional.pad(batch["frames"], (0, 0, 0, longest - batch["frames"].shape[1]))
            for batch in batches
        ]
        lengths = torch.cat([batch["frames_lengths"] for batch in batches])
        model.standardise.fit(model.scaled(torch.cat(frames))[0], lengths)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world: int = 1
    ) -> SoundBatches:
        """So many sounds together as the training's `tokens` say."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MorseData(_Heard):
    """Which Morse code: limits of length, speed, pitch and noise; `spared` speeds are for tests.

    Training sends at every speed from `slowest` to `fastest` words a minute but those between each
    pair of `spared`; valid and test send at these alone, with a noise of `test_snr` decibels. With
    `radio` the sounds are as hands send and receivers play them (`data.Morse`); in a share of
    `empty` training sounds nobody sends.

    >>> MorseData().bands
    ((17.0, 19.0), (26.0, 29.0))
    """

    shortest: int = 3
    longest: int = 12  # letters
    slowest: float = 8.0
    fastest: float = 45.0
    spared: tuple[float, ...] = (17.0, 19.0, 26.0, 29.0)
    snr: float = -3.0  # decibels, the most noise that is trained on
    test_snr: float = 0.0
    lowest: float = 250.0  # hertz
    highest: float = 1300.0
    radio: bool = True
    empty: float = 0.04
    mels: int = 40
    valid: int = 200
    test: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "shortest", "longest", "mels", "valid", "test")
        self.source()  # its errors, now

    @property
    def bands(self) -> tuple[tuple[float, float], ...]:
        """The speeds that are never trained on."""
        return tuple(zip(self.spared[::2], self.spared[1::2], strict=True))

    def source(self, **changes: Any) -> Morse:
        """What sends."""
        told: dict[str, Any] = {
            "letters": (self.shortest, self.longest),
            "wpm": (self.slowest, self.fastest),
            "snr": (self.snr, 20.0),
            "pitch": (self.lowest, self.highest),
            "radio": self.radio,
            "empty": self.empty,
            "spared": self.bands,
        }
        return Morse(**(told | changes))

    def tokenizer(self, seed: int) -> Tokenizer:
        """Every sign there is a code for, and the space."""
        return Characters.train(["".join(CODES) + " "])

    def sized(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the signs, and the features of the data."""
        return replace(model, vocab=tokenizer.vocab, mels=self.mels, rate=8000)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world: int = 1
    ) -> SoundBatches:
        """So many sounds together as the training's `tokens` say."""
        return morse_batches(
            self.source(), tokenizer, mels=self.mels, size=train.tokens, device=device_of(train),
            seed=train.seed, rank=rank, world=world,
        )  # fmt: skip

    def scores(self, tokenizer: Tokenizer, part: Part) -> SpeechScores:
        """Character error in noise, at speeds that were never trained on."""
        bands = self.bands or ((self.slowest, self.fastest),)
        count = -(-(self.valid if part == "valid" else self.test) // len(bands))
        noise = self.test_snr, self.test_snr
        sounds = [
            sound
            for band in bands
            for sound in self.source(wpm=band, snr=noise, spared=(), empty=0, count=count).examples(
                part, 0
            )
        ]
        return SpeechScores(sounds, tokenizer)


@dataclass(frozen=True, kw_only=True)
class DigitsData(_Heard):
    """Strings of spoken digits from a folder of takes, as of the Free Spoken Digit Dataset.

    The `held` speakers are for the test. Without any, all are learnt from, and the test is of
    valid takes. With `agree` the two passes over a batch hear its strings in two voices.

    >>> DigitsData(folder="fsdd").held
    ('george',)
    """

    folder: str = "fsdd"
    held: tuple[str, ...] = ("george",)
    mels: int = 40
    warp: float = 0.12
    colour: float = 3.0  # five voices came by five microphones, up to 15 dB apart in a band
    masks: int = 0  # a six whose s is hidden is an eight
    pace: float = 0.45
    bend: float = 0.6  # of the pace inside a digit
    swell: float = 0.2  # of what is softer than a vowel
    trim: float = 0.3  # takes are cut out of silence, soft consonants with it
    slowest: float = 0.9  # pitch and formants go with the speed; the pace does not
    fastest: float = 1.1
    between: float = 0.5  # of all strings, those of a voice between two
    mixed: float = 0.3  # those whose digits are each of any speaker
    echo: float = 0.5
    hiss: float = 1.0
    snr: float = 15.0  # decibels, the most noise that is trained on
    phones: bool = True  # whether the sounds of the digits are learnt beside the digits
    valid: int = 200
    test: int = 600

    def __post_init__(self) -> None:
        check_positive(self, "mels", "valid", "test")
        _ = self.change  # its errors, now

    def source(self, count: int = 1) -> Digits:
        """What speaks."""
        return _digits(self.folder, self.held, (self.slowest, self.fastest), self.snr, count)

    def tokenizer(self, seed: int) -> Tokenizer:
        """The ten digits."""
        return Characters.train(["0123456789"])

    def sized(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the digits, and the features of the data."""
        rate = self.source().rate
        phones = 1 + len(PHONES) if self.phones else 0
        return replace(model, vocab=tokenizer.vocab, mels=self.mels, rate=rate, phones=phones)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world: int = 1
    ) -> SoundBatches:
        """So many strings together as the training's `tokens` say."""
        return digit_batches(
            self.source(), tokenizer, mels=self.mels, size=train.tokens, change=self.change,
            again=train.agree > 0, phones=self.phones, device=device_of(train), seed=train.seed,
            rank=rank, world=world,
        )  # fmt: skip

    @property
    def change(self) -> Change:
        """What is done to the training sounds."""
        return Change(**{field.name: getattr(self, field.name) for field in fields(Change)})

    def scores(self, tokenizer: Tokenizer, part: Part) -> SpeechScores:
        """Word error (a digit is a word) of voices that were never heard."""
        source = self.source(self.valid if part == "valid" else self.test)
        split: Part = part if self.held else "valid"
        return SpeechScores(list(source.examples(split, 0)), tokenizer)


@lru_cache(4)
def _digits(
    folder: str, held: tuple[str, ...], speed: tuple[float, float], snr: float, count: int
) -> Digits:
    return Digits(folder, held=held, speed=speed, snr=(snr, 45.0), count=count)


def morse() -> Recipe:
    """Morse code as it is heard, in as much noise as tone, at speeds never trained on.

    >>> morse().model.chunk  # strictly causal
    1
    """
    return Recipe(
        name="morse",
        data=MorseData(),
        model=recogniser_tiny(44, dim=128, layers=4, left=64, dropout=0.0),
        train=TrainConfig(
            steps=2111, tokens=64, lr=1e-3, warmup=175, betas=(0.9, 0.98),
            evaluate_every=351, save_every=1053, log_every=50,
        ),
    )  # fmt: skip


def digits() -> Recipe:
    """Strings of spoken digits as they are heard, of a voice never heard; takes are in `folder`.

    >>> digits().data.held
    ('george',)
    """
    return Recipe(
        name="digits",
        data=DigitsData(),
        model=recogniser_tiny(
            14, dim=256, layers=6, left=32, dropout=0.3, level=12.0, filters=32
        ),
        train=TrainConfig(
            steps=6000, tokens=48, lr=1e-3, warmup=300, decay=0.05, betas=(0.9, 0.98), agree=0.5,
            evaluate_every=3000, save_every=3000, log_every=50,
        ),
    )  # fmt: skip
