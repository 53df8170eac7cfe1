"""Edit distance, and word or character error rate."""

from collections.abc import Sequence
from typing import Any

from regard.errors import ShapeError


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
