"""The effect of changing one key on an output: closed forms, and streaming in plain torch."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.grid import slice_axis
from regard.ops.survey.fast_path import group_size
from regard.ops.terms import LOG2E, Terms, finite_lse, grouped_dot, repeat_kv, upcast
from regard.ops.tiling import split_keys, tile_size
from regard.tables import html_summary

# Above one half by more than the rounding of lse: at most one key per row exceeds it.
DOMINANT_WEIGHT = 0.5005
# |h - v|² below this part of 2 |h|² cancels in h² + v² - 2 h · v: computed by differences.
CANCELLATION_RATIO = 4e-3
ROUNDING = 32  # of |h|, in units of its precision; 9 is the largest error measured
NEGLIGIBLE_WEIGHT = 1e-6  # weights for which cancellation does not matter


def attend_without(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    rows: range,
    excluded_per_row: Tensor | None = None,
    excluded_keys: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of `rows` without some keys: an online softmax, in float32 or better.

    Where one key holds nearly all of the weight, the rest is lost in the rounding of `out` and
    `lse`; summed by itself it has full precision however small its share is.

    `excluded_per_row`, (*batch, rows), is one key per row, -1 for none; `excluded_keys` are left
    out of every row. A row without other keys gets zeros, and -inf or its sink.
    """
    like = upcast(q[..., rows.start : rows.stop, :1])[..., 0]
    best, total = torch.full_like(like, -torch.inf), torch.zeros_like(like)
    out = like.new_zeros((*like.shape, v.shape[-1]))
    for keys in split_keys(terms.key_span(rows, k.shape[-2]), tile_size(q).keys):
        scores = terms.score_tile(q, k, rows, keys)
        if excluded_per_row is not None:
            inside = (excluded_per_row >= keys.start) & (excluded_per_row < keys.stop)
            scores[inside, excluded_per_row[inside] - keys.start] = -torch.inf
        if excluded := [key - keys.start for key in excluded_keys if key in keys]:
            scores = scores.index_fill(-1, torch.tensor(excluded, device=q.device), -torch.inf)
        top = torch.maximum(best, scores.detach().amax(-1))
        base = top.masked_fill(top == -torch.inf, 0)
        # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        p = scores - base[..., None] if scores.requires_grad else scores.sub_(base[..., None])
        p = p.mul_(LOG2E).exp2_()
        decay = torch.exp(best - base)
        total = total * decay + p.sum(-1)
        out = out * decay[..., None] + p @ upcast(repeat_kv(slice_axis(v, -2, keys), q)).to(p.dtype)
        best = top
    empty = best == -torch.inf
    lse = terms.with_sinks(torch.log(total.masked_fill(empty, 1)) + best)
    share = torch.exp(best - lse.masked_fill(empty, 0))
    return out * share[..., None], lse


def log_weight_and_complement(score: Tensor, rest_lse: Tensor) -> tuple[Tensor, Tensor]:
    """log w and log (1 - w) of a key, from its score and the log-sum-exp of the others.

    >>> both = log_weight_and_complement(torch.tensor(20.0), torch.tensor(0.0))
    >>> [round(float(x), 4) for x in both]
    [-0.0, -20.0]
    """
    log_odds = (score - rest_lse).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return F.logsigmoid(log_odds), F.logsigmoid(-log_odds)


def weight_change(log_w: Tensor, log_rest: Tensor, shift: Tensor) -> Tensor:
    """w' - w when the score of a key changes by `shift`, without cancellation.

    w' - w = w (1 - w) (r - 1) / (1 - w + w r),   r = exp(shift)

    >>> half = torch.tensor(0.5).log()
    >>> weight_change(half, half, torch.tensor(3.0).log())  # from 1 : 1 to 3 : 1
    tensor(0.2500)
    """
    # in logs: r may overflow, and w or 1 - w underflow, where the change does not
    new = torch.logaddexp(log_rest - shift.clamp(min=0), log_w + shift.clamp(max=0))
    return torch.exp(log_w + log_rest - new) * -torch.expm1(-shift.abs()) * shift.sign()


Effect = Literal["remove", "slope", "scale"]


@dataclass(frozen=True)
class AttentionRecord:
    """One attention call: inputs, results and terms."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    terms: Terms

    @property
    def is_half_precision(self) -> bool:
        """Whether output or log-sum-exp are in half precision, and so must be recomputed."""
        return upcast(self.out) is not self.out or upcast(self.lse) is not self.lse

    def rounding(self, share: float | None = None) -> Tensor:
        """A share of |h_i|, by default that which the rounding of h leaves in |h_i - v_j|."""
        h = upcast(self.out)
        return (ROUNDING * torch.finfo(h.dtype).eps if share is None else share) * h.norm(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Influence:
    """Effects of changing keys: e_ij is the norm of the change of output i by key j.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([[0.0], [0.0], [9.0]])
    >>> rg.influence(q, k, v, *rg.attend(q, k, v)).strongest_key
    tensor([2])
    """

    strongest: Float[Tensor, "*batch query"]  # max_j e_ij
    strongest_key: Int[Tensor, "*batch query"]  # its key, -1 if no key has an effect
    effect_on_query: Float[Tensor, "*batch query"]  # Σ_j e_ij, the effect of all keys on a query
    effect_of_key: Float[Tensor, "*batch key"]  # Σ_i e_ij, the effect of a key on all queries
    # what strongest and effect_on_query may be off by beyond 1e-3 of them: where values are nearly
    # equal, a smaller effect is rounding of the output
    rounding: Float[Tensor, "*batch query"]

    def _repr_html_(self) -> str:
        return html_summary(vars(self))


class RowBand:
    """A band of rows: their outputs and log-sum-exps, and the dominant key of each.

    A key with a weight above one half is left out of the tiles; `dominant_effects` computes its
    effect from the attention without it, as 1 - w and h - v cancel in a rounded `lse` and `out`.
    """

    def __init__(self, record: AttentionRecord, rows: range):
        self.record, self.rows = record, rows
        if record.is_half_precision:
            self.out, self.lse = attend_without(record.q, record.k, record.v, record.terms, rows)
        else:
            self.out, self.lse = slice_axis(record.out, -2, rows), slice_axis(record.lse, -1, rows)
        self.finite_lse = finite_lse(self.lse)[..., None]
        self.dominant_key = torch.full_like(self.lse, -1, dtype=torch.long)
        self.dominant_score, self.score_shift = (
            torch.zeros_like(self.lse, dtype=upcast(record.q).dtype) for _ in range(2)
        )

    def effects(self, keys: range, effect: Effect, alpha: float) -> Tensor:
        """The norm of the change of each output for each key in `keys`, 0 for dominant keys.

        With w the weight, h the output and v the value:
        remove   w / (1 - w) · |h - v|, the other keys take over its share
        slope    w · |v - h|, per unit of score
        scale    |w' - w| / (1 - w) · |v - h|, w' the weight with the key multiplied by alpha
        """
        record = self.record
        scores = record.terms.score_tile(record.q, record.k, self.rows, keys)
        shift = None
        if effect == "scale":  # the change of each score when its key is multiplied by alpha
            scaled = record.terms.score_tile(record.q, alpha * upcast(record.k), self.rows, keys)
            shift = (scaled - scores).nan_to_num(nan=0.0)  # -inf - -inf where masked
        x = scores - self.finite_lse
        dominant = x.amax(-1) > math.log(DOMINANT_WEIGHT)
        if dominant.any():
            index = x[dominant].argmax(-1)
            self.dominant_key[dominant] = index + keys.start
            self.dominant_score[dominant] = scores[dominant, index]
            x[dominant, index] = -torch.inf
            if shift is not None:
                self.score_shift[dominant] = shift[dominant, index]
        # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        w = torch.exp2(x * LOG2E)
        distance = self._distance(keys, w)
        match effect:
            case "slope":
                return distance.mul_(w)
            case "remove":
                return distance.mul_(w).div_(1 - w)
            case _:
                assert shift is not None
                log_rest = torch.log1p(-w)
                return distance.mul_((weight_change(x, log_rest, shift) / (1 - w)).abs())

    def dominant_effects(self, effect: Effect) -> Tensor | None:
        """The effect of each row's dominant key, 0 in rows without; None if no row has one.

        With h' the output without the key, h - v = (1 - w) (h' - v), so with w and 1 - w from the
        two log-sum-exps nothing cancels:
        remove w · |h' - v|,  slope w (1 - w) · |h' - v|,  scale |w' - w| · |h' - v|

        If a query sees this key only, h' = 0 and w = 1: removing it removes the whole output.
        Only the rows from the first to the last with a dominant key are recomputed.
        """
        has = (self.dominant_key >= 0).view(-1, len(self.rows)).any(0)
        if not has.any():
            return None
        first, last = has.nonzero()[[0, -1], 0].tolist()
        part, record = slice(first, last + 1), self.record
        key = self.dominant_key[..., part]
        out, lse = attend_without(record.q, record.k, record.v, record.terms, self.rows[part], key)
        log_w, log_rest = log_weight_and_complement(self.dominant_score[..., part], lse)
        at = key.clamp(min=0)[..., None].expand_as(out)
        distance = (upcast(repeat_kv(record.v, record.q)).gather(-2, at) - out).norm(dim=-1)
        match effect:
            case "remove":
                size = log_w.exp()
            case "slope":
                size = (log_w + log_rest).exp()
            case _:
                size = weight_change(log_w, log_rest, self.score_shift[..., part]).abs()
        e = torch.zeros_like(self.dominant_score)
        e[..., part] = torch.where(key >= 0, size * distance, 0)
        return e

    def _distance(self, keys: range, w: Tensor) -> Tensor:
        """|h_i - v_j| for all pairs by one product; for nearly equal pairs by their difference."""
        v = upcast(repeat_kv(slice_axis(self.record.v, -2, keys), self.record.q))
        h = upcast(self.out)
        length = h.square().sum(-1)[..., None]
        square = (h @ v.mT).mul_(-2).add_(length).add_(v.square().sum(-1)[..., None, :])
        near = square < 2 * CANCELLATION_RATIO * length
        if near.any():
            near &= w > NEGLIGIBLE_WEIGHT
            for part in near.nonzero().split(max(1, (1 << 22) // h.shape[-1])):
                *batch, i, j = part.unbind(-1)
                square[(*batch, i, j)] = (h[(*batch, i)] - v[(*batch, j)]).square().sum(-1)
        return square.clamp_(min=0).sqrt_()


class FastPath:
    """Effects of removing each key, e = |h - v| / (1 / w - 1), for tiles that allow it.

    Two products give log₂ (1 / w) and |h - v|² themselves: lse, |h|² and |v|² are further features.
    A tile with a dominant key or a value close to an output is left to `RowBand`, as are the other
    terms of a score than a mask.
    """

    def __init__(self, record: AttentionRecord):
        self.record, self.terms = record, record.terms
        k, v = upcast(record.k), upcast(record.v)
        dtypes = {x.dtype for x in (upcast(record.q), k, v, upcast(record.out), upcast(record.lse))}
        terms = (self.terms.score, self.terms.softcap, self.terms.bias)
        self.can_run = len(dtypes) == 1 and all(x is None for x in terms)
        if self.can_run:
            self.k = F.pad(k, (0, 1), value=1.0)
            square = v.square().sum(-1, keepdim=True)
            self.v = torch.cat([v, torch.ones_like(square), square], -1)
            self.memory = k.new_empty(2, 0)

    def begin(self, band: RowBand) -> None:
        """Prepare the queries and outputs of a band."""
        self.band = band
        if not self.can_run:
            return
        q, h = upcast(slice_axis(self.record.q, -2, band.rows)), upcast(band.out)
        # powers of two: on a CPU exp of what underflows, or of -inf, is forty times slower
        q, lse = -self.terms.scale * LOG2E * q, LOG2E * finite_lse(upcast(band.lse))
        self.q = torch.cat([q, lse[..., None]], -1)
        square = h.square().sum(-1, keepdim=True)
        self.h = torch.cat([-2 * h, square, torch.ones_like(square)], -1)
        self.near = 2 * CANCELLATION_RATIO * square[..., 0]

    def effects(self, keys: range) -> Tensor | None:
        """The effects of a tile, valid until the next; None if `RowBand` has to compute it."""
        if not self.can_run:
            return None
        size = self.q.shape[:-1].numel() * len(keys)
        if self.memory.shape[1] < size:
            self.memory = self.memory.new_empty(2, size)
        x = grouped_dot(self.q, slice_axis(self.k, -2, keys), self.memory[0])  # log₂ (1 / w)
        grid, mask = self.terms.grid(self.q, self.record.k, self.band.rows, keys), self.terms.mask
        if not (mask is None or mask.is_full(grid.query_positions, keys)):
            x.masked_fill_(~mask.tile(grid), torch.inf)
        # False for NaN, which then reaches the result
        if (x.amin(-1) < -math.log2(DOMINANT_WEIGHT)).any():
            return None
        square = grouped_dot(self.h, slice_axis(self.v, -2, keys), self.memory[1])
        if (square.amin(-1) < self.near).any():
            return None
        return square.sqrt_().div_(x.exp2_().sub_(1))


def add_tiles(
    record: AttentionRecord,
    effect: Effect,
    alpha: float,
    tiles: Iterable[tuple[range, range]],
    fast: FastPath | None = None,
) -> Influence:
    """The totals of these tiles, ordered by rows, and of the dominant keys in them."""
    like = upcast(record.lse)
    on_query = like.new_zeros(record.q.shape[:-1])
    of_key = like.new_zeros((*record.q.shape[:-2], record.k.shape[-2]))
    strongest, strongest_key = on_query.clone(), torch.full_like(on_query, -1, dtype=torch.long)
    for rows, row_tiles in groupby(tiles, key=lambda tile: tile[0]):
        band, at = RowBand(record, rows), slice(rows.start, rows.stop)
        best = strongest[..., at], strongest_key[..., at]
        if fast:
            fast.begin(band)
        for _, keys in row_tiles:
            e = fast.effects(keys) if fast else None
            e = band.effects(keys, effect, alpha) if e is None else e
            on_query[..., at] += e.sum(-1)
            of_key[..., keys.start : keys.stop] += e.sum(-2)
            # an index is slow: only in rows with a new maximum; of equal ones the first key stays
            groups = e.flatten(0, -2).unflatten(-1, (-1, group_size(len(keys))))
            tops = groups.amax(-1)
            value = tops.amax(-1).view(e.shape[:-1]).to(like.dtype)
            is_new = value > best[0]
            if is_new.any():
                new = is_new.flatten().nonzero()[:, 0]
                group = tops[new].max(-1).indices
                inside = groups[new, group].max(-1).indices
                best[1][is_new] = group * groups.shape[-1] + inside + keys.start
            torch.maximum(value, best[0], out=best[0])
        if (e := band.dominant_effects(effect)) is not None:
            e = e.to(like.dtype)
            on_query[..., at] += e
            of_key.scatter_add_(-1, band.dominant_key.clamp(min=0), e)
            key = band.dominant_key  # of equal effects the first key stays
            is_new = (e > best[0]) | (e == best[0]) & (key < best[1])
            best[1].copy_(torch.where(is_new, key, best[1]))
            torch.maximum(e, best[0], out=best[0])
    return Influence(
        strongest=strongest, strongest_key=strongest_key, effect_on_query=on_query,
        effect_of_key=of_key, rounding=record.rounding(),
    )  # fmt: skip
