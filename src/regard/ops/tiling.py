"""Streaming over an attention map: bands of rows, and tiles of the keys visible to each band."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.terms import Terms

MAX_SCORES = 1 << 24  # scores per band, 64 MB of float32

Recompute = Callable[
    [range, Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]
]


class TileSize(NamedTuple):
    """Size of a tile, all heads together."""

    weights: int  # target number of weights: the working set then fits its cache
    rows: int  # minimum
    keys: int  # maximum


CPU_TILE = TileSize(1 << 20, 256, 512)  # 4 MB of float32: smaller tiles are all overhead
CACHE_TILE = TileSize(1 << 19, 256, 512)  # 2 MB, for several passes over the same tile
GPU_TILE = TileSize(1 << 24, 128, 4096)  # few, large launches


def tile_size(q: Tensor) -> TileSize:
    """The tile size for the device of q."""
    return GPU_TILE if q.is_cuda else CPU_TILE


def iter_tiles(q: Tensor, k: Tensor, terms: Terms) -> Iterator[tuple[range, range]]:
    """Rows and keys of every tile with visible keys.

    >>> from regard.ops.terms import make_terms
    >>> q = torch.zeros(600, 1)
    >>> [*iter_tiles(q, q, make_terms(q, q, mask=rg.Causal()))]
    [(range(0, 600), range(0, 512)), (range(0, 600), range(512, 600))]
    """
    keys, tile = k.shape[-2], tile_size(q)
    per_row = q.shape[:-2].numel() * min(keys, tile.keys)
    for rows in split_rows(q, max(tile.rows, tile.weights // max(1, per_row))):
        for part in split_keys(terms.key_span(rows, keys), tile.keys):
            yield rows, part


def row_bands(queries: int, per_row: int, max_elements: int | None = None) -> list[range]:
    """Split the rows into bands of about `max_elements` numbers, `per_row` numbers in each row.

    None is MAX_SCORES.

    >>> row_bands(5, per_row=10, max_elements=20)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    height = max(1, (max_elements or MAX_SCORES) // max(1, per_row))
    return [range(top, min(top + height, queries)) for top in range(0, max(1, queries), height)]


def split_rows(q: Tensor, height: int) -> list[range]:
    """Split the rows of q into bands of `height`.

    >>> split_rows(torch.zeros(5, 1), height=3)
    [range(0, 3), range(3, 5)]
    """
    return row_bands(q.shape[-2], 1, height) if q.shape[-2] else []


def split_keys(keys: range, width: int, boundaries: Iterable[int] = ()) -> list[range]:
    """Split a range of keys at multiples of `width`, and at further boundaries.

    >>> split_keys(range(3, 10), width=4)
    [range(3, 4), range(4, 8), range(8, 10)]
    >>> split_keys(range(3, 10), width=4, boundaries=[5])
    [range(3, 4), range(4, 5), range(5, 8), range(8, 10)]
    """
    inside = {*range((keys.start // width + 1) * width, keys.stop, width), *boundaries}
    at = [keys.start, *sorted(a for a in inside if keys.start < a < keys.stop), keys.stop]
    return [range(a, b) for a, b in pairwise(at) if a < b]


def attach_gradients(
    values: Sequence[Tensor],
    inputs: Sequence[Tensor],
    trainable: Sequence[Tensor],
    bands: Sequence[range],
    recompute: Recompute,
) -> tuple[Tensor, ...]:
    """The values of a streamed op, with a backward pass that recomputes each band.

    `recompute(rows, inputs, grads)` returns the outputs of a band and their gradients, given the
    gradients of the values. Inputs are passed in detached, as one may be computed from another.
    """
    tensors = (*inputs, *trainable)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return tuple(values)
    return _Streamed.apply(bands, recompute, len(inputs), len(tensors), *tensors, *values)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, bands: Any, recompute: Recompute, inputs: int, count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.bands, ctx.recompute, ctx.inputs = bands, recompute, inputs
        ctx.save_for_backward(*tensors[:count])
        ctx.values = len(tensors) - count
        return tuple(map(torch.clone, tensors[count:]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [
            x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors[: ctx.inputs]
        ]
        tensors = (*inputs, *ctx.saved_tensors[ctx.inputs :])
        trained = [x for x in tensors if x.requires_grad]
        totals = {id(x): torch.zeros_like(x) for x in trained}
        for rows in ctx.bands:
            with torch.enable_grad():
                outputs, grad_outputs = ctx.recompute(rows, inputs, grads)
            parts = torch.autograd.grad(outputs, trained, grad_outputs, allow_unused=True)
            for x, part in zip(trained, parts, strict=True):
                if part is not None:
                    totals[id(x)] += part
        return (None,) * 4 + tuple(totals.get(id(x)) for x in tensors) + (None,) * ctx.values
