"""The most probable outputs of a model, per position or for a whole input."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from regard.inspection.sites.labels import strip_marks
from regard.ops.tiling import row_bands

TOP = 5


class Predictions(NamedTuple):
    """Names with their probabilities, the largest first: one list per position, or one in all.

    >>> Predictions("class", [[("cat", 0.9), ("dog", 0.1)]]).rows[-1][0]
    ('cat', 0.9)
    """

    kind: str  # what is predicted: "next token", "token", "tag" or "class"
    rows: list[list[tuple[str, float]]]
    at: int = -1  # position shown first
    ids: Sequence[Sequence[int]] = ()  # of the names, as the model counts its outputs
    classes: int = 0  # that the model chooses from


def top_predictions(
    kind: str, logits: Float[Tensor, "position class"], names: Callable[[list[int]], list[str]]
) -> Predictions:
    """The most probable classes of each position; `names` are labels or tokens by index.

    >>> found = top_predictions("tag", torch.tensor([[0.0, 40.0]]), lambda ids: [*map(str, ids)])
    >>> found.rows, found.ids, found.classes
    ([[('1', 1.0), ('0', 0.0)]], [[1, 0]], 2)
    """
    rows, indices = [], []
    for band in row_bands(*logits.shape):
        part = logits[band.start : band.stop].float()
        best = part.topk(min(TOP, part.shape[-1]), -1)
        probabilities = (best.values - part.logsumexp(-1, keepdim=True)).exp()
        indices += best.indices.tolist()
        for p, classes in zip(probabilities.tolist(), best.indices.tolist(), strict=True):
            rows.append(
                [*zip(map(strip_marks, names(classes)), (round(x, 4) for x in p), strict=True)]
            )
    return Predictions(kind, rows, ids=indices, classes=logits.shape[-1])
