"""Evaluation of a recogniser: loss, character error rate, exact match."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from regard.data import AudioExample, Tokenizer
from regard.data.audio.augmentation import add_white_noise
from regard.data.content.morse.ood_audio import make_ood_audio
from regard.errors import ShapeError
from regard.tasks.recognition.transcripts import (
    feature_batches,
    transcribe_batch,
    transcribe_batch_detailed,
)
from regard.train.evaluation import mean_loss
from regard.train.losses import objective
from regard.train.metrics import GradedAnswer, IsCorrect, Tally


class RecognitionEvaluator:
    """CTC loss, character error rate and exact match on fixed recordings.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> evaluate = RecognitionEvaluator([AudioExample(torch.zeros(8000), "ET", 8000)], tokenizer)
    >>> sorted(evaluate(model))
    ['error', 'exact', 'loss']
    """

    def __init__(self, audio: Sequence[AudioExample], tokenizer: Tokenizer):
        if not audio:
            raise ShapeError("audio: needs 1 recording or more, got none")
        self.audio, self.tokenizer = audio, tokenizer

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        return self.score(model, self.predict(model))

    def predict(self, model: Any) -> list[str]:
        return transcribe_batch(model, self.tokenizer, self.audio)

    def predict_scored(self, model: Any) -> list[tuple[str, float]]:
        """Transcripts with the raw score that confidence is calibrated on."""
        transcripts = transcribe_batch_detailed(model, self.tokenizer, self.audio)
        return [(transcript.text, transcript.score) for transcript in transcripts]

    def tally(self, answers: Sequence[str]) -> Tally:
        """Edits, reference length and exact match of each transcript."""
        pairs = zip(answers, self.references, strict=True)
        rows = [(edit_distance(a, b), len(b), a == b, 1) for a, b in pairs]
        return Tally(
            torch.tensor(rows, dtype=torch.float),
            lambda x: {"error": x[0] / max(1.0, x[1]), "exact": x[2] / x[3]},
        )

    def grade(self, model: Any, is_correct: IsCorrect) -> list[GradedAnswer]:
        """Graded transcripts of clean, noisy and out-of-distribution recordings.

        Empty transcripts are not graded.
        """
        rng = Random(0)
        noisy = [
            add_white_noise(example, rng.uniform(-15, 10), seed=n)
            for n, example in enumerate(self.audio)
        ]
        audio = [*self.audio, *noisy, *make_ood_audio(len(self.audio), self.audio[0].rate)]
        transcripts = transcribe_batch_detailed(model, self.tokenizer, audio)
        return [
            GradedAnswer(transcript.score, is_correct(transcript.text, example.text))
            for transcript, example in zip(transcripts, audio, strict=True)
            if transcript.text
        ]

    @property
    def sources(self) -> list[str]:
        """A description of each recording."""
        return [
            f"recording {n}, {len(example.wave) / example.rate:.1f} s"
            for n, example in enumerate(self.audio)
        ]

    @property
    def references(self) -> list[str]:
        return [example.text for example in self.audio]

    def score(self, model: Any, answers: Sequence[str]) -> dict[str, Any]:
        references = self.references
        exact = sum(a == b for a, b in zip(answers, references, strict=True)) / len(references)
        batches = (batch for _, batch in feature_batches(model, self.tokenizer, self.audio))
        loss = mean_loss(model, objective("ctc"), batches)
        return {"loss": loss, "error": error_rate(answers, references), "exact": exact}


def edit_distance(answer: Sequence[Any], reference: Sequence[Any]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions.

    d(i, j) = min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + [a_i ≠ b_j])

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(reference) + 1))
    for i, a in enumerate(answer, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(reference, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def error_rate(answers: Sequence[Sequence[Any]], references: Sequence[Sequence[Any]]) -> float:
    """Total edit distance over total reference length: WER of words, CER of characters.

    >>> error_rate(["ab", "c"], ["abb", "c"])
    0.25
    """
    if len(answers) != len(references) or not sum(map(len, references)):
        raise ShapeError(
            f"answers: needs one for each of {len(references)} references, not all empty, "
            f"got {len(answers)}"
        )
    edits = sum(edit_distance(a, b) for a, b in zip(answers, references, strict=True))
    return edits / sum(map(len, references))
