"""Sound to text while it is heard: Morse code, and strings of spoken digits."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.data import CharTokenizer, Morse, Tokenizer
from regard.data.audio.audio_batches import AudioBatches
from regard.data.audio.morse.batches import morse_batches
from regard.data.audio.morse.keying import MORSE_CODE
from regard.models import Recogniser, recogniser_tiny
from regard.models.config import check_positive
from regard.tasks.recipe import EvalSplit, Recipe
from regard.tasks.recognition.evaluator import RecognitionEvaluator
from regard.train.config import TrainConfig
from regard.train.loop import select_device

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
        cpu = replace(
            train, device="cpu", precision="auto", batch_tokens=min(train.batch_tokens, 16)
        )
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
            self.source(), tokenizer, mels=self.n_mels, batch_size=train.batch_tokens, device=select_device(train),
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
            steps=2111, batch_tokens=64, lr=1e-3, warmup=175, betas=(0.9, 0.98),
            evaluate_every=351, save_every=1053, log_every=50,
        ),
    )  # fmt: skip
