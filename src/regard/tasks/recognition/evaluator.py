"""Transcripts of recordings in batches, and the evaluation of a CTC recogniser by them."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import AudioExample, Resampler, Tokenizer, collate
from regard.data.audio.augmentation import add_white_noise
from regard.data.audio.peak_normalization import normalize_recording
from regard.data.audio.speech_batches import label_batch
from regard.data.batches import Batch, batch_by_length
from regard.data.content.morse.ood_audio import make_ood_audio
from regard.decode import BestPath, PathScore
from regard.decode.streaming import WARMUP_SECONDS, select_dither, warm_start_cmvn
from regard.errors import ShapeError
from regard.models import Recogniser, WordRecogniser
from regard.ops import log_mel
from regard.ops.maybe_none import MaybeNone
from regard.train.evaluation import mean_loss
from regard.train.losses import objective
from regard.train.metrics import GradedAnswer, IsCorrect, Tally

BATCH_SIZE = 50  # recordings per forward pass


class Transcript(NamedTuple):
    """A transcript with its raw score and, for a calibrated run, its confidence.

    `warning` says why it may be wrong: low confidence, a recording unlike those of the training.
    """

    text: str
    score: float  # of `decode.PathScore`
    confidence: float | MaybeNone = None
    warning: str = ""
    notes: tuple[str, ...] = ()  # such as "resampled from …"
    is_complete: bool = True  # False if the file is damaged or truncated


def transcribe_batch(
    model: Recogniser | WordRecogniser, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> list[str]:
    """Transcripts of recordings; the same text as `regard transcribe`, in batches.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> len(transcribe_batch(model, tokenizer, [AudioExample(torch.zeros(8000), "", 8000)]))
    1
    """
    return [transcript.text for transcript in transcribe_batch_detailed(model, tokenizer, audio)]


@torch.no_grad()
def transcribe_batch_detailed(
    model: Recogniser | WordRecogniser, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> list[Transcript]:
    """Transcripts of recordings, with scores."""
    transcripts: dict[int, Transcript] = {}
    for indices, batch in feature_batches(model, tokenizer, audio):
        log_probs, lengths = model(
            batch["frames"], batch["frames_lengths"], cmvn_state=batch.get("before")
        )
        for n, row, length in zip(indices, log_probs, lengths.tolist(), strict=True):
            labels, score = BestPath()(row[:length]), PathScore()
            score(row[:length])
            text = tokenizer.decode(labels).strip()
            transcripts[n] = Transcript(text, score.per_label(len(labels)))
    return [transcripts[n] for n in range(len(audio))]


def feature_batches(
    model: Recogniser | WordRecogniser, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> Iterator[tuple[list[int], Batch]]:
    """Batches for CTC on the device of the model, sorted by length, with their indices."""
    device = next(model.parameters()).device
    seconds = [len(example.wave) * 8000 // example.rate for example in audio]
    for indices in batch_by_length(seconds, BATCH_SIZE):
        prepared = [_prepare(model, audio[n]) for n in indices]
        batch = collate([{"frames": frames} for frames, _ in prepared])
        batch |= label_batch([audio[n].text for n in indices], tokenizer)
        states = [state for _, state in prepared if state is not None]
        if states:
            batch["before"] = torch.cat(states)
        yield indices, {name: x.to(device) for name, x in batch.items()}


def _prepare(
    model: Recogniser | WordRecogniser, example: AudioExample
) -> tuple[Tensor, Tensor | None]:
    """Frames of a recording as a `Transcriber` computes them, and the initial CMVN state."""
    config = model.config
    rate, wave = config.sample_rate, example.wave.float().cpu()
    if example.rate != rate:
        resample = Resampler(example.rate, rate)
        wave = torch.cat([resample(wave), resample.finish()])
    samples = normalize_recording(wave, rate, dither=select_dither(config))
    state = None
    if config.cmvn_depth is not None:
        state = warm_start_cmvn(model, samples[: min(len(wave), round(WARMUP_SECONDS * rate))])
    return log_mel(samples, rate, n_mels=config.n_mels), state


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
