"""The exact weights of a part of the map, or that part pooled: the tile of a deep zoom."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.attend.tiled import row_bands
from regard.ops.autocast import without_autocast
from regard.ops.biases import Bias
from regard.ops.indices import as_int_pair, resolve_slice
from regard.ops.masks import Mask
from regard.ops.survey.op import check_lse
from regard.ops.survey.reference import weights_from_scores
from regard.ops.terms import ScoreFunction, Terms, make_terms

PoolReduce = Literal["sum", "mean", "max"]


def window(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key other"],
    lse: Float[Tensor, "*batch query"],
    *,
    rows: slice | int = slice(None),
    keys: slice | int = slice(None),
    pool: tuple[int, int] = (1, 1),
    reduce: PoolReduce = "mean",
    mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    bias: Bias | Float[Tensor, "... _ _"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    score: ScoreFunction | None = None,
    offset: int = 0,
) -> Float[Tensor, "*batch row column"]:
    """The weights of some rows and keys, exact; with `pool` a cell stands for rows × keys of them.

    w_ij = exp(s_ij - lse_i);   pooled by sum, mean or max over each cell

    The last cells may be smaller. Cost grows with the window, not with the map.

    >>> q, k, v = torch.zeros(6, 2), torch.zeros(4, 2), torch.zeros(4, 2)
    >>> _, lse = rg.attend(q, k, v)
    >>> rg.window(q, k, lse, rows=slice(0, 4), pool=(2, 4), reduce="sum")
    tensor([[2.],
            [2.]])
    """
    check_lse(q, lse)
    terms = make_terms(
        q,
        k,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        score=score,
        offset=offset,
    )
    return compute_window(q, k, lse, terms, rows, keys, pool, reduce)


@without_autocast
def compute_window(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    terms: Terms,
    rows: slice | int,
    keys: slice | int,
    pool: tuple[int, int] = (1, 1),
    reduce: PoolReduce = "mean",
) -> Tensor:
    """The window on terms already made."""
    if min(as_int_pair("pool", pool)) < 1:
        raise ShapeError(f"pool: needs 1 or more, got {pool}")
    if reduce not in ("sum", "mean", "max"):
        raise ShapeError(f"reduce: needs sum, mean or max, got {reduce!r}")
    down = resolve_slice(rows, q.shape[-2], "rows")
    across = resolve_slice(keys, k.shape[-2], "keys")
    high, wide = pool = as_int_pair("pool", pool)
    at_a_time = row_bands(-(-len(down) // high), q.shape[:-2].numel() * len(across) * high)
    pieces = []
    for cells in at_a_time:
        part = down[cells.start * high : cells.stop * high]
        w = weights_from_scores(
            terms.score_tile(q, k, part, across), lse[..., part.start : part.stop]
        )
        pieces.append(w if pool == (1, 1) else _pool(_pool(w, -1, wide, reduce), -2, high, reduce))
    return torch.cat(pieces, -2)


def _pool(w: Tensor, axis: int, size: int, reduce: PoolReduce) -> Tensor:
    """Fold cells of `size` along one axis; the last may hold fewer."""
    count = w.shape[axis]
    short = -count % size
    w = F.pad(w, (0, short) if axis == -1 else (0, 0, 0, short))  # weights are never negative
    cells = w.unflatten(axis, (-1, size))
    if reduce == "max":
        return cells.amax(axis)
    held = torch.full((cells.shape[axis - 1],), float(size), dtype=w.dtype, device=w.device)
    held[-1] -= short
    total = cells.sum(axis)
    return total if reduce == "sum" else total / (held if axis == -1 else held[:, None])
