"""The key of each row's largest weight, searched in the tile known to hold it."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.ops.terms import upcast

MAX_GROUP = 64  # keys per group in first_argmax
BUFFER_SCORES = 1 << 20  # scores computed at a time


class PeakSearch:
    """The key range of each row's peak, per head; stop = 0 for none."""

    def __init__(self, heads: int, queries: int, block: int):
        self.start, self.stop = torch.zeros(2, heads, queries, dtype=torch.long).unbind(0)
        self.block = block  # a range lies within one block of so many keys

    def find(self, q: Tensor, k: Tensor, scale: float, peak_key: Tensor) -> None:
        """Fill in `peak_key`, with one product per head and block of keys."""
        q = q.reshape(-1, *q.shape[-2:])
        buffer = k.new_empty(max(BUFFER_SCORES, self.block))
        for head, key_of_row in enumerate(peak_key):
            head_keys = k[head // (len(peak_key) // len(k)), :, : q.shape[-1]]
            for rows, block, is_whole in self._group_rows(head, len(head_keys)):
                keys = head_keys[block : block + self.block]
                for part in rows.split(len(buffer) // self.block):
                    queries = upcast(q[head].index_select(0, part)).to(k.dtype) * scale
                    shape = len(part), len(keys)
                    scores = buffer[: math.prod(shape)].view(shape)
                    torch.mm(queries, keys.mT, out=scores)
                    if not is_whole:
                        self._mask(scores, head, part, block)
                    key_of_row.index_copy_(0, part, first_argmax(scores) + block)

    def _group_rows(self, head: int, keys: int) -> Iterator[tuple[Tensor, int, bool]]:
        """Rows with the same block, the start of it, and whether their range is all of it."""
        rows = self.stop[head].nonzero().squeeze(-1)
        start, stop = self.start[head, rows], self.stop[head, rows]
        is_whole = (start % self.block == 0) & ((stop % self.block == 0) | (stop == keys))
        kind, order = (2 * (start // self.block) + is_whole).sort(stable=True)
        kinds, counts = kind.unique_consecutive(return_counts=True)
        parts = rows[order].split(counts.tolist())
        for kind, part in zip(kinds.tolist(), parts, strict=True):
            yield part, kind // 2 * self.block, kind % 2 == 1

    def _mask(self, scores: Tensor, head: int, rows: Tensor, block: int) -> None:
        j = torch.arange(block, block + scores.shape[-1])
        start, stop = self.start[head, rows, None], self.stop[head, rows, None]
        scores.masked_fill_((j < start) | (j >= stop), -torch.inf)


def first_argmax(rows: Tensor) -> Tensor:
    """The first index of each row's maximum, by groups: argmax of a long row is far slower.

    >>> first_argmax(torch.tensor([[0.0, 2.0, 1.0, 2.0]]))
    tensor([1])
    """
    group = group_size(rows.shape[-1])
    groups = rows.unflatten(-1, (-1, group))
    which = groups.amax(-1).max(-1).indices
    index = torch.arange(len(rows), device=rows.device) * groups.shape[1] + which
    return which * group + groups.flatten(0, 1).index_select(0, index).max(-1).indices


def group_size(width: int) -> int:
    """The largest divisor of a row's width up to MAX_GROUP, or the width if that is below 16.

    >>> group_size(512), group_size(510), group_size(509)
    (64, 51, 509)
    """
    size = next(size for size in range(min(MAX_GROUP, width), 0, -1) if width % size == 0)
    return size if size >= 16 else width
