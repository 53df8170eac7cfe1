"""Base class of the tasks of recognition."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from regard.data import Tokenizer
from regard.models import Recogniser, WordRecogniser
from regard.tasks.base import BatchUnit, Task
from regard.tasks.recognition.evaluator import Transcript, edit_distance
from regard.tasks.recognition.pipeline import TranscribeJob
from regard.tasks.recognition.verb import Transcribe
from regard.train.config import TrainConfig

CORRECT_ERROR_RATE = 0.1  # highest character error rate of a transcript that counts as correct
CMVN_BATCHES = 8  # batches over which feature statistics are estimated
CMVN_BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class AudioTask(Transcribe, Task):
    """Data of a recogniser: CTC loss, and global feature statistics from training batches."""

    objective: ClassVar[str] = "ctc"
    pipeline_type = TranscribeJob
    unit: ClassVar[str] = "recordings"
    batch_unit: ClassVar[BatchUnit] = "batch_size"

    @property
    @abstractmethod
    def trained_rate(self) -> int:
        """Samples per second below which a recording lacks frequencies of the training."""

    def format_output(self, output: Transcript) -> str:
        return output.text

    def is_correct(self, answer: str, reference: str) -> bool:
        """Whether the character error rate is at most `CORRECT_ERROR_RATE`."""
        return edit_distance(answer, reference) <= CORRECT_ERROR_RATE * len(reference)

    def prepare_model(
        self, model: Recogniser | WordRecogniser, tokenizer: Tokenizer, train: TrainConfig
    ) -> None:
        """Estimate mean and standard deviation of the features on training batches."""
        if isinstance(model, WordRecogniser):  # it normalizes each recording
            return
        size = min(self.batch_limit(train), CMVN_BATCH_SIZE)
        config = replace(train, device="cpu", precision="auto", batch_size=size)
        stream: Any = iter(self.batches(tokenizer, config))
        batches = [next(stream) for _ in range(CMVN_BATCHES)]
        longest = max(batch["frames"].shape[1] for batch in batches)
        frames = [
            torch.nn.functional.pad(batch["frames"], (0, 0, 0, longest - batch["frames"].shape[1]))
            for batch in batches
        ]
        lengths = torch.cat([batch["frames_lengths"] for batch in batches])
        model.standardise.fit(model.normalize_features(torch.cat(frames))[0], lengths)
