"""Exact match and BLEU of texts."""

from collections.abc import Sequence
from typing import Any

from regard.errors import ShapeError


def score_texts(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Exact-match rate, corpus BLEU by sacrebleu, and sacrebleu's signature of that BLEU.

    >>> scores = score_texts(["one two three four", "five"], ["one two three four", "six"])
    >>> scores["exact"], round(scores["bleu"], 1)  # 4 of 5 words, all pairs: (4/5)^(1/4)
    (0.5, 94.6)
    """
    from sacrebleu.metrics.bleu import BLEU  # slow to import

    if not answers or len(answers) != len(references):
        raise ShapeError(
            f"answers: needs one for each of {len(references)} references, got {len(answers)}"
        )
    bleu = BLEU()
    score = bleu.corpus_score(list(answers), [list(references)]).score
    exact = sum(a == b for a, b in zip(answers, references, strict=True)) / len(answers)
    return {"exact": exact, "bleu": score, "signature": str(bleu.get_signature())}
