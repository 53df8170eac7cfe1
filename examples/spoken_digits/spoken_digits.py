"""Streaming recognition of spoken digit strings by a speaker held out of training.

python examples/spoken_digits/spoken_digits.py runs/digits folder=fsdd held_out_speakers=lucas

Arguments are the folder of the run and settings of the recipe. See README.md for results.
"""

import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache

from regard import runs
from regard.data import AudioBatches, CharTokenizer, Tokenizer
from regard.models import RecogniserConfig, recogniser_tiny
from regard.models.config import check_positive
from regard.tasks import EvalSplit, Recipe, RecognitionEvaluator, task
from regard.tasks.recognition.audio import AudioTask
from regard.train import TrainConfig
from regard.train.distributed import select_device

from frames import DigitAugmentation, digit_batches  # isort: skip
from recordings import SpokenDigits  # isort: skip


@task("digits")
@dataclass(frozen=True, kw_only=True)
class DigitsTask(AudioTask):
    """Digit strings joined from the recordings of a folder, as of the Free Spoken Digit Dataset.

    Args:
        folder: of files such as 7_lucas_3.wav.
        held_out_speakers: speakers of the test split; without any, test is valid.
        n_mels: log-mel bands.
        min_speed, max_speed: range of pitch and formants.
        augmentation: of the training strings.
        valid_size, test_size: strings of these splits.

    >>> DigitsTask(folder="fsdd").held_out_speakers
    ('george',)
    """

    folder: str = "fsdd"
    held_out_speakers: tuple[str, ...] = ("george",)
    n_mels: int = 40
    min_speed: float = 0.9
    max_speed: float = 1.1
    augmentation: DigitAugmentation = field(
        default_factory=lambda: DigitAugmentation(
            eq=3.0,  # the microphones of five speakers differ by up to 15 dB in a band
            spec_augment=0,  # a six whose s is masked is an eight
            gain_jitter=0.2, reverb=0.5, tempo_range=0.45, time_warp=0.6,
            trim_fraction=0.3,  # recordings are cut out of silence, soft consonants with it
            speaker_interpolation=0.5, speaker_mixing=0.3, noise_tilt=1.0, min_snr=15.0,
        )
    )  # fmt: skip
    valid_size: int = 200
    test_size: int = 600

    def __post_init__(self) -> None:
        check_positive(self, "n_mels", "valid_size", "test_size")

    @property
    def trained_rate(self) -> int:
        return 8000  # of all recordings of the data set

    def source(self, eval_size: int = 1) -> SpokenDigits:
        """The generator of strings."""
        speed = self.min_speed, self.max_speed
        return _load(self.folder, self.held_out_speakers, speed, eval_size)

    def tokenizer(self, seed: int) -> Tokenizer:
        """The ten digits."""
        return CharTokenizer.train(["0123456789"])

    def resolve(self, model: RecogniserConfig, tokenizer: Tokenizer) -> RecogniserConfig:
        """The model's config with the vocabulary and features of the data."""
        rate = self.source().rate
        return replace(model, vocab=tokenizer.vocab, n_mels=self.n_mels, sample_rate=rate)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> AudioBatches:
        """Endless augmented batches; with R-Drop the second pass sees another augmentation."""
        return digit_batches(
            self.source(), tokenizer, mels=self.n_mels, batch_size=self.batch_limit(train),
            augmentation=self.augmentation, second_view=train.rdrop > 0,
            device=select_device(train), seed=train.seed, rank=rank, world_size=world_size,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> RecognitionEvaluator:
        """Word error rate (a digit is a word) of the held-out speakers."""
        source = self.source(self.valid_size if split == "valid" else self.test_size)
        split = split if self.held_out_speakers else "valid"
        return RecognitionEvaluator(list(source.examples(split, 0)), tokenizer)


@lru_cache(4)
def _load(
    folder: str, held_out_speakers: tuple[str, ...], speed: tuple[float, float], eval_size: int
) -> SpokenDigits:
    return SpokenDigits(
        folder, held_out_speakers=held_out_speakers, speed=speed, eval_size=eval_size
    )


def digits() -> Recipe:
    """A causal recogniser of 4.85 million parameters with online CMVN.

    >>> digits().data.held_out_speakers
    ('george',)
    """
    return Recipe(
        name="digits",
        data=DigitsTask(),
        model=recogniser_tiny(
            14, dim=256, layers=6, left_chunks=32, dropout=0.3, cmvn_depth=12.0, filters=32
        ),
        train=TrainConfig(
            steps=6000, batch_size=48, lr=1e-3, warmup=300, weight_decay=0.05, betas=(0.9, 0.98),
            rdrop=0.5, evaluate_every=3000, save_every=3000, log_every=50,
        ),
    )  # fmt: skip


if __name__ == "__main__":
    run_folder, *settings = sys.argv[1:]
    outcome = runs.fit(runs.override_settings(digits(), settings), run_folder, show=True)
    print(f"word error rate of the held-out speakers: {outcome.scores['error']:.1%}")
