"""Which key a row's largest weight is on, looked for once the tile that holds it is known."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.terms import widen

GROUP = 64  # keys among which a largest is looked for
AT_ONCE = 1 << 20  # scores held at a time


class Sought:
    """For each row of each head the stretch of keys that its peak is in; none where stop is 0."""

    def __init__(self, heads: int, queries: int, block: int):
        self.start, self.stop = torch.zeros(2, heads, queries, dtype=torch.long).unbind(0)
        self.block = block  # a stretch is within one block of so many keys

    def find(self, q: Tensor, k: Tensor, scale: float, peak_key: Tensor) -> None:
        """Write the keys down: one product for all rows of a head that look into the same block."""
        rows_at_once = max(1, AT_ONCE // self.block)
        for head, keys in enumerate(peak_key):
            of_head = widen(q.view(-1, *q.shape[-2:])[head]) * scale
            kept = k[head // (len(peak_key) // len(k))]
            for rows in self._together(head, len(kept)):
                for some in rows.split(rows_at_once):
                    start, stop = self.start[head, some], self.stop[head, some]
                    keys[some] = _largest(of_head[some], kept, start, stop)

    def _together(self, head: int, keys: int) -> list[Tensor]:
        """Rows that look into the same block; those that see all of it for themselves."""
        rows = self.stop[head].nonzero().squeeze(-1)
        start, stop = self.start[head, rows], self.stop[head, rows]
        block = start // self.block
        whole = (start % self.block == 0) & ((stop % self.block == 0) | (stop == keys))
        kind, order = (2 * block + whole).sort(stable=True)
        cuts = (kind.diff().nonzero().squeeze(-1) + 1).tolist()
        return [rows[order[a:b]] for a, b in pairwise([0, *cuts, len(rows)]) if a < b]


def _largest(q: Tensor, k: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    low, high = int(start.min()), int(stop.max())
    scores = q.to(k.dtype) @ k[low:high, : q.shape[-1]].mT
    if int(start.max()) > low or int(stop.min()) < high:
        j = torch.arange(low, high)
        scores.masked_fill_((j < start[:, None]) | (j >= stop[:, None]), -torch.inf)
    return low + first_largest(scores)


def first_largest(rows: Tensor) -> Tensor:
    """Where each row is largest, looked for in groups: argmax of a long row is far slower.

    >>> first_largest(torch.tensor([[0.0, 2.0, 1.0, 2.0]]))
    tensor([1])
    """
    if rows.shape[-1] < 4 * GROUP:
        return rows.argmax(-1)
    short = -rows.shape[-1] % GROUP
    groups = F.pad(rows, (0, short), value=-torch.inf) if short else rows
    groups = groups.unflatten(-1, (-1, GROUP))
    group = groups.amax(-1).argmax(-1)
    place = torch.arange(len(rows), device=rows.device) * groups.shape[1] + group
    return group * GROUP + groups.flatten(0, 1).index_select(0, place).argmax(-1)
