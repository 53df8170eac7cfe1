"""Evaluation of a model during and after training: mean loss, exact match and BLEU."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from regard.errors import ShapeError
from regard.train.losses import Batch, Objective
from regard.train.metrics import Tally

Scores = TypeVar("Scores")


def run_evaluation(model: nn.Module, evaluate: Callable[[nn.Module], Scores]) -> Scores:
    """Call `evaluate` in eval mode and without gradients; mode and random state are restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            return evaluate(model)
    finally:
        model.train(was_training)


@torch.no_grad()
def mean_loss(model: nn.Module, objective: Objective, batches: Iterable[Batch]) -> float:
    """Loss per token (or example) over all batches, without label smoothing.

    Σ_batches loss_sum / Σ_batches size

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=8)).eval()
    >>> batch = {"tokens": torch.zeros(1, 5, dtype=torch.long)}
    >>> mean_loss(model, rg.train.objective("next_token"), [batch]) > 0
    True
    """
    device = next(model.parameters()).device
    total, size = 0.0, 0
    for batch in batches:
        batch = {name: x.to(device) for name, x in batch.items()}
        total += float(objective.loss_sum(model, batch))
        size += int(objective.size(batch))
    return total / max(1, size)


def score_texts(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Exact-match rate, corpus BLEU by sacrebleu, and sacrebleu's signature of that BLEU.

    >>> scores = score_texts(["one two three four", "five"], ["one two three four", "six"])
    >>> scores["exact"], round(scores["bleu"], 1)  # 4 of 5 words, all pairs: (4/5)^(1/4)
    (0.5, 94.6)
    """
    if not answers or len(answers) != len(references):
        raise ShapeError(
            f"answers: needs one for each of {len(references)} references, got {len(answers)}"
        )
    scores = text_tally(answers, references).scores()
    return {**scores, "signature": str(_bleu().get_signature())}


def text_tally(answers: Sequence[str], references: Sequence[str]) -> Tally:
    """Per text: whether it is an exact match, and the statistics of sacrebleu's corpus BLEU."""
    bleu = _bleu()
    # what sacrebleu's own bootstrap adds up
    statistics = bleu._extract_corpus_statistics(list(answers), [list(references)])
    exact = [[float(a == b), 1.0] for a, b in zip(answers, references, strict=True)]
    rows = torch.cat([torch.tensor(exact), torch.tensor(statistics, dtype=torch.float)], 1)

    def score(sums: list[float]) -> dict[str, float]:
        correct, count, *counts = sums
        return {"exact": correct / count, "bleu": bleu._compute_score_from_stats(counts).score}

    return Tally(rows, score)


@cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU  # slow to import

    return BLEU(force=True)  # texts may be tokenized, and are scored as they are


def format_scores(scores: dict[str, Any]) -> str:
    """Numeric scores in one line.

    >>> format_scores({"loss": 0.25, "exact": 0.5, "signature": "x"})
    'loss 0.2500, exact 0.5000'
    """
    return ", ".join(f"{k} {v:.4f}" for k, v in scores.items() if isinstance(v, int | float))
