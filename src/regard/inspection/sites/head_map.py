"""One head's attention map as log2 weights of any rectangle, recomputed from q, k and lse."""

from dataclasses import replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.inspection.sites.site import Site, select_head
from regard.ops.biases import DenseBias, SumBias
from regard.ops.grid import slice_axis
from regard.ops.indices import resolve_index
from regard.ops.masks import Both, DenseMask, Documents, Either, Padding
from regard.ops.terms import LOG2E, finite_lse, upcast

Term = TypeVar("Term")


class HeadMap:
    """The weights of one head for one sequence, as log2 w = (s - lse) · log2 e of any rectangle.

    >>> head_map = HeadMap(rg.make_site(*torch.zeros(2, 4, 2)), head=0)
    >>> head_map.log2_weights(range(1), range(4))
    tensor([[-2., -2., -2., -2.]])
    """

    def __init__(self, site: Site, head: int, batch: int = 0):
        site.require_tensors()
        head = resolve_index("head", head, site.heads)
        batch = resolve_index("batch", batch, site.batch)
        self.queries, self.keys, self.device = site.queries, site.keys, site.q.device
        terms = select_head(site.terms, head)
        self.is_custom = terms is None  # defined for all sequences and heads together
        if terms is None:
            q, k, lse, self.terms, self.index = site.q, site.k, site.lse, site.terms, (batch, head)
        else:
            kv_head, one = head // (site.heads // site.k.shape[1]), slice(batch, batch + 1)
            q, k, lse = (
                site.q[one, head, None],
                site.k[one, kv_head, None],
                site.lse[one, head, None],
            )
            mask = select_sequence(terms.mask, batch)
            self.terms = replace(terms, mask=mask, bias=select_sequence(terms.bias, batch))
            self.index = (0, 0)
        self.q, self.k, self.lse = q.detach(), k.detach(), finite_lse(upcast(lse.detach()))
        self.maps = q.shape[:2].numel()  # computed at a time: one, unless terms are custom
        terms = self.terms
        self.is_plain = not (self.is_custom or terms.score or terms.bias or terms.softcap)
        if self.is_plain:
            self._prepare_product()

    def _prepare_product(self) -> None:
        """One product gives log2 w itself: the last feature is -lse · 1."""
        dtype = torch.promote_types(upcast(self.q[:0]).dtype, self.lse.dtype)
        q, k = (upcast(x[0, 0]).to(dtype) for x in (self.q, self.k))
        q = torch.cat([q * self.terms.scale, -self.lse[0, 0, :, None]], -1) * LOG2E
        # aligned rows, for the fast products of a GPU
        missing = -q.shape[-1] % 8 if q.is_cuda else 0
        self.q_and_lse = F.pad(q, (0, missing))
        self.k_and_ones = F.pad(F.pad(k, (0, 1), value=1.0), (0, missing))

    def key_span(self, rows: range) -> range:
        """The smallest known range that holds every key visible to these rows."""
        return self.terms.key_span(rows, self.keys)

    def is_full(self, rows: range, keys: range) -> bool:
        """Whether the mask is known to hide nothing in a rectangle."""
        offset, mask = self.terms.offset, self.terms.mask
        return mask is None or mask.is_full(range(rows.start + offset, rows.stop + offset), keys)

    def log2_weights(self, rows: range, keys: range) -> Tensor:
        """log2 w of a rectangle, -inf where hidden; `rows` may have a step."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if self.is_plain:
                return self._plain_log2_weights(rows, keys)
            if self.is_custom and rows.step > 1:  # custom terms need not know of steps
                return torch.cat([self.log2_weights(range(i, i + 1), keys) for i in rows])
            scores = self.terms.score_tile(self.q, self.k, rows, keys)[self.index]
            return (scores - slice_axis(self.lse[self.index], 0, rows)[:, None]) * LOG2E

    def _plain_log2_weights(self, rows: range, keys: range) -> Tensor:
        x = slice_axis(self.q_and_lse, 0, rows) @ slice_axis(self.k_and_ones, 0, keys).mT
        if self.terms.mask is not None and not self.is_full(rows, keys):
            hidden = ~self.terms.mask.tile(self.terms.grid(self.q, self.k, rows, keys))
            x[None, None].masked_fill_(hidden, -torch.inf)
        return x


def select_sequence(term: Term, batch: int) -> Term:
    """The mask or bias of one sequence of the batch, as a batch of one.

    >>> select_sequence(rg.Padding(torch.tensor([2, 5])) & rg.Causal(), 1)
    Both(a=Padding(lengths=tensor([5]), left_padding=None), b=Causal())
    """
    one = slice(batch, batch + 1)
    match term:
        case Both() | Either() | SumBias():
            return replace(term, a=select_sequence(term.a, batch), b=select_sequence(term.b, batch))
        case Padding():
            left = term.left_padding
            left = None if left is None else left.reshape(-1)[one]
            return replace(term, lengths=term.lengths.reshape(-1)[one], left_padding=left)
        case Documents():
            return replace(term, ids=term.ids[one])
        case DenseMask():
            return replace(term, allowed=_select_dense(term.allowed, one))
        case DenseBias():
            return replace(term, values=_select_dense(term.values, one))
    return term  # a function of head and positions alone


def _select_dense(x: Tensor, one: slice) -> Tensor:
    return x[one] if x.ndim > 3 and x.shape[0] > 1 else x
