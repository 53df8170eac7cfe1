"""Morse code in radio noise, at speeds held out of training."""

from dataclasses import dataclass, replace
from typing import Any, Unpack

from regard.data import AudioBatches, CharTokenizer, Morse, Tokenizer, morse_batches
from regard.data.content.morse.channel import MORSE_CODE
from regard.models import RecogniserConfig
from regard.models.config import check_positive
from regard.tasks.base import EvalSplit, Shard
from regard.tasks.recognition.audio import AudioTask
from regard.tasks.recognition.evaluator import RecognitionEvaluator
from regard.tasks.registry import task
from regard.train.config import TrainConfig
from regard.train.distributed import select_device


@task("morse")
@dataclass(frozen=True, kw_only=True)
class MorseTask(AudioTask):
    """Synthesised Morse code.

    Training covers all speeds but the held-out ranges; valid and test have these only, at
    `test_snr`.

    Args:
        min_letters, max_letters: length of the texts.
        min_wpm, max_wpm: speed in words per minute.
        held_out_wpm: pairs of low and high speed that are not trained on.
        min_snr: lowest signal-to-noise ratio of training, in dB.
        test_snr: signal-to-noise ratio of valid and test, in dB.
        min_pitch, max_pitch: frequency of the tone, in Hz.
        radio_effects: add the effects of senders and receivers (`data.Morse`).
        empty_fraction: of training recordings without a transmission.
        n_mels: log-mel bands.
        valid_size, test_size: recordings of these splits.

    >>> MorseTask().held_out_bands
    ((17.0, 19.0), (26.0, 29.0))
    """

    min_letters: int = 3
    max_letters: int = 12
    min_wpm: float = 8.0
    max_wpm: float = 45.0
    held_out_wpm: tuple[float, ...] = (17.0, 19.0, 26.0, 29.0)
    min_snr: float = -3.0
    test_snr: float = 0.0
    min_pitch: float = 250.0
    max_pitch: float = 1300.0
    radio_effects: bool = True
    empty_fraction: float = 0.04
    n_mels: int = 40
    valid_size: int = 200
    test_size: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "min_letters", "max_letters", "n_mels", "valid_size", "test_size")
        self.source()  # raises on invalid settings

    @property
    def held_out_bands(self) -> tuple[tuple[float, float], ...]:
        """Ranges of speed that are not trained on."""
        return tuple(zip(self.held_out_wpm[::2], self.held_out_wpm[1::2], strict=True))

    @property
    def trained_rate(self) -> int:
        return round(2 * self.max_pitch)

    def source(self, **changes: Any) -> Morse:
        """The generator of training recordings, with some arguments changed."""
        options: dict[str, Any] = {
            "letters": (self.min_letters, self.max_letters),
            "wpm": (self.min_wpm, self.max_wpm),
            "snr": (self.min_snr, 20.0),
            "pitch": (self.min_pitch, self.max_pitch),
            "radio_effects": self.radio_effects,
            "empty_fraction": self.empty_fraction,
            "held_out_wpm": self.held_out_bands,
        }
        return Morse(**(options | changes))

    def tokenizer(self, seed: int) -> Tokenizer:
        """All characters of the Morse code, and the space."""
        return CharTokenizer.train(["".join(MORSE_CODE) + " "])

    def resolve(self, model: RecogniserConfig, tokenizer: Tokenizer) -> RecogniserConfig:
        return replace(model, vocab=tokenizer.vocab, n_mels=self.n_mels, sample_rate=8000)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]
    ) -> AudioBatches:
        return morse_batches(
            self.source(), tokenizer, mels=self.n_mels, batch_size=self.batch_limit(train),
            device=select_device(train), seed=train.seed, **shard,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> RecognitionEvaluator:
        """Character error rate at the held-out speeds."""
        bands = self.held_out_bands or ((self.min_wpm, self.max_wpm),)
        size = -(-(self.valid_size if split == "valid" else self.test_size) // len(bands))
        audio = []
        for band in bands:
            source = self.source(
                wpm=band, snr=(self.test_snr, self.test_snr), held_out_wpm=(), empty_fraction=0,
                eval_size=size,
            )  # fmt: skip
            audio += source.examples(split, 0)
        return RecognitionEvaluator(audio, tokenizer)
