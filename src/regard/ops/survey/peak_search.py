"""Which key a row's largest weight is on, looked for once the tile that holds it is known."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from regard.ops.terms import upcast

MAX_GROUP = 64  # at most so many keys are looked through one by one
BUFFER_SCORES = 1 << 20  # scores held at a time


class PeakSearch:
    """For each row of each head the stretch of keys that its peak is in; none where stop is 0."""

    def __init__(self, heads: int, queries: int, block: int):
        self.start, self.stop = torch.zeros(2, heads, queries, dtype=torch.long).unbind(0)
        self.block = block  # a stretch is within one block of so many keys

    def find(self, q: Tensor, k: Tensor, scale: float, peak_key: Tensor) -> None:
        """Write the keys down: one product for all rows of a head that look into the same block."""
        q = q.reshape(-1, *q.shape[-2:])
        room = k.new_empty(max(BUFFER_SCORES, self.block))
        for head, key_of_row in enumerate(peak_key):
            kept = k[head // (len(peak_key) // len(k)), :, : q.shape[-1]]
            for rows, block, whole in self._together(head, len(kept)):
                keys = kept[block : block + self.block]
                for some in rows.split(len(room) // self.block):
                    asking = upcast(q[head].index_select(0, some)).to(k.dtype) * scale
                    shape = len(some), len(keys)
                    scores = room[: math.prod(shape)].view(shape)
                    torch.mm(asking, keys.mT, out=scores)
                    if not whole:
                        self._hide(scores, head, some, block)
                    key_of_row.index_copy_(0, some, first_argmax(scores) + block)

    def _together(self, head: int, keys: int) -> Iterator[tuple[Tensor, int, bool]]:
        """Rows that look into the same block, where it starts, and whether they see all of it."""
        rows = self.stop[head].nonzero().squeeze(-1)
        start, stop = self.start[head, rows], self.stop[head, rows]
        whole = (start % self.block == 0) & ((stop % self.block == 0) | (stop == keys))
        kind, order = (2 * (start // self.block) + whole).sort(stable=True)
        kinds, counts = kind.unique_consecutive(return_counts=True)
        parts = rows[order].split(counts.tolist())
        for kind, part in zip(kinds.tolist(), parts, strict=True):
            yield part, kind // 2 * self.block, kind % 2 == 1

    def _hide(self, scores: Tensor, head: int, rows: Tensor, block: int) -> None:
        j = torch.arange(block, block + scores.shape[-1])
        start, stop = self.start[head, rows, None], self.stop[head, rows, None]
        scores.masked_fill_((j < start) | (j >= stop), -torch.inf)


def first_argmax(rows: Tensor) -> Tensor:
    """Where each row is largest, looked for in groups: argmax of a long row is far slower.

    >>> first_argmax(torch.tensor([[0.0, 2.0, 1.0, 2.0]]))
    tensor([1])
    """
    wide = rows.shape[-1]
    group = next(size for size in range(min(MAX_GROUP, wide), 0, -1) if wide % size == 0)
    if group < 16 or group == wide:
        return rows.max(-1).indices
    groups = rows.unflatten(-1, (-1, group))
    which = groups.amax(-1).max(-1).indices
    place = torch.arange(len(rows), device=rows.device) * groups.shape[1] + which
    return which * group + groups.flatten(0, 1).index_select(0, place).max(-1).indices
