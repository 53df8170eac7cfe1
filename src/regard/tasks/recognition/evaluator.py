"""How good a recogniser is: its loss, and how many words and characters it gets wrong."""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data import AudioExample, Resampler, Tokenizer, collate
from regard.data.audio.audio_batches import label_batch
from regard.data.audio.ood_audio import add_white_noise, make_ood_audio
from regard.data.audio.peak_normalization import normalize_recording
from regard.data.batches import batch_by_length
from regard.decode import BestPath, PathScore
from regard.decode.streaming.transcriber import WARMUP_SECONDS, select_dither, warm_start_cmvn
from regard.errors import ShapeError
from regard.ops import log_mel
from regard.train.losses import objective
from regard.train.metrics.calibration import GradedAnswer
from regard.train.metrics.loss import mean_loss

ROWS = 50  # sounds that are heard together


def edit_distance(answer: Sequence[Any], reference: Sequence[Any]) -> int:
    """The fewest insertions, deletions and replacements that make one into the other (Levenshtein).

    d(i, j) = min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + [a_i ≠ b_j])

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(reference) + 1))
    for i, a in enumerate(answer, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(reference, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def error_rate(answers: Sequence[Sequence[Any]], references: Sequence[Sequence[Any]]) -> float:
    """Edits over the length of the references, all together: of words, or of characters.

    >>> error_rate(["ab", "c"], ["abb", "c"])
    0.25
    """
    if len(answers) != len(references) or not sum(map(len, references)):
        raise ShapeError(
            f"answers: needs one for each of {len(references)} references with something in them, "
            f"got {len(answers)}"
        )
    wrong = sum(edit_distance(a, b) for a, b in zip(answers, references, strict=True))
    return wrong / sum(map(len, references))


def best_path(
    log_probs: Float[Tensor, "batch time vocab"], lengths: Int[Tensor, " batch"]
) -> list[list[int]]:
    """The labels of the likeliest path: repeats are joined, then blanks left out.

    >>> path = torch.tensor([[1, 1, 0, 1, 2, 2]])
    >>> best_path(torch.nn.functional.one_hot(path, 3).float().log(), torch.tensor([6]))
    [[1, 1, 2]]
    """
    return [
        BestPath()(row[:length]) for row, length in zip(log_probs, lengths.tolist(), strict=True)
    ]


class Transcript(NamedTuple):
    """What a recogniser heard, and how sure it is: `score` is raw, `confidence` is calibrated.

    >>> Transcript("ET", -0.1).confidence is None  # of a run without a calibration
    True
    """

    text: str
    score: float  # of `decode.PathScore`
    confidence: float | None = None


def transcribe_batch(
    model: nn.Module, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> list[str]:
    """What a recogniser hears in recordings: what `regard transcribe` writes, many at a time.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> len(transcribe_batch(model, tokenizer, [AudioExample(torch.zeros(8000), "", 8000)]))
    1
    """
    return [found.text for found in transcribe_batch_detailed(model, tokenizer, audio)]


@torch.no_grad()
def transcribe_batch_detailed(
    model: nn.Module, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> list[Transcript]:
    """The same, with the score of each.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> transcribe_batch_detailed(model, tokenizer, [AudioExample(torch.zeros(8000), "", 8000)])[0].score < 0
    True
    """
    found: dict[int, Transcript] = {}
    for rows, batch in _batches(model, tokenizer, audio):
        log_probs, lengths = model(
            batch["frames"], batch["frames_lengths"], cmvn_state=batch.get("before")
        )
        for n, row, length in zip(rows, log_probs, lengths.tolist(), strict=True):
            labels, score = BestPath()(row[:length]), PathScore()
            score(row[:length])
            text = tokenizer.decode(labels).strip()
            found[n] = Transcript(text, score.per_label(len(labels)))
    return [found[n] for n in range(len(audio))]


def _batches(model: nn.Module, tokenizer: Tokenizer, sounds: Sequence[AudioExample]) -> Any:
    """Sounds of like lengths together, ready for the model, with their places in the list."""
    device = next(model.parameters()).device
    for rows in batch_by_length([len(s.wave) * 8000 // s.rate for s in sounds], ROWS):
        ready = [_prepared(model, sounds[n]) for n in rows]
        batch = collate([{"frames": frames} for frames, _ in ready])
        batch |= label_batch([sounds[n].text for n in rows], tokenizer)
        starts = [before for _, before in ready if before is not None]
        if starts:
            batch["before"] = torch.cat(starts)
        yield rows, {name: x.to(device) for name, x in batch.items()}


def _prepared(model: nn.Module, sound: AudioExample) -> tuple[Tensor, Tensor | None]:
    """The frames of a recording as a `Transcriber` makes them, and where its means start from."""
    config: Any = model.config
    wave = sound.wave.float().cpu()
    if sound.rate != config.sample_rate:
        resample = Resampler(sound.rate, config.sample_rate)
        wave = torch.cat([resample(wave), resample.finish()])
    ready = normalize_recording(wave, config.sample_rate, dither=select_dither(config))
    before = None
    if config.cmvn_depth is not None:
        before = warm_start_cmvn(
            model, ready[: min(len(wave), round(WARMUP_SECONDS * config.sample_rate))]
        )
    return log_mel(ready, config.sample_rate, n_mels=config.n_mels), before


class RecognitionEvaluator:
    """What a recogniser gets on fixed sounds: loss, character error, share of exact answers.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> scores = RecognitionEvaluator([AudioExample(torch.zeros(8000), "ET", 8000)], tokenizer)
    >>> sorted(scores(model))
    ['error', 'exact', 'loss']
    """

    def __init__(self, audio: Sequence[AudioExample], tokenizer: Tokenizer):
        if not audio:
            raise ShapeError("sounds: needs 1 or more, got none")
        self.audio, self.tokenizer = audio, tokenizer

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        return self.score(model, self.predict(model))

    def predict(self, model: nn.Module) -> list[str]:
        """What the model hears in each."""
        return transcribe_batch(model, self.tokenizer, self.audio)

    def grade(self, model: nn.Module) -> list[GradedAnswer]:
        """Transcripts of the sounds, of the same in worse noise, and of sounds without words.

        Right is a transcript of which at most a tenth of the characters is wrong; no text at all
        is no answer, and not graded.
        """
        rng = Random(0)
        worse = [
            add_white_noise(sound, rng.uniform(-15, 10), seed=n)
            for n, sound in enumerate(self.audio)
        ]
        foreign = make_ood_audio(len(self.audio), self.audio[0].rate)
        sounds = [*self.audio, *worse, *foreign]
        found = transcribe_batch_detailed(model, self.tokenizer, sounds)
        return [
            GradedAnswer(
                one.score,
                bool(sound.text) and edit_distance(one.text, sound.text) <= 0.1 * len(sound.text),
            )
            for one, sound in zip(found, sounds, strict=True)
            if one.text
        ]

    @property
    def sources(self) -> list[str]:
        """Which sound it is, in words."""
        return [
            f"sound {n}, {len(sound.wave) / sound.rate:.1f} s" for n, sound in enumerate(self.audio)
        ]

    @property
    def references(self) -> list[str]:
        """What is said in each."""
        return [sound.text for sound in self.audio]

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        texts = self.references
        exact = sum(a == b for a, b in zip(answers, texts, strict=True)) / len(texts)
        batches = (batch for _, batch in _batches(model, self.tokenizer, self.audio))
        loss = mean_loss(model, objective("ctc"), batches)
        return {"loss": loss, "error": error_rate(answers, texts), "exact": exact}
