"""The Edit type, and the arguments, masks, biases and calls that edits are built from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.adapters.module_tracker import Caller, check_glob
from regard.ops.biases import Bias
from regard.ops.grid import Grid, slice_axis
from regard.ops.indices import as_ints, resolve_index
from regard.ops.influence.effect import attend_without
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed
from regard.ops.masks import Mask
from regard.ops.mixers import MixResult
from regard.ops.terms import Terms, repeat_kv, upcast
from regard.ops.tiling import row_bands, split_rows

Indices = int | Sequence[int]
Selection = Indices | None  # None stands for all
EditFunction = Callable[[AttentionCall, Proceed, Caller], AttentionResult]
MixerProceed = Callable[[Any], MixResult]
MixerFunction = Callable[[Any, MixerProceed, Caller, int], MixResult]  # with the first token


@dataclass(frozen=True)
class Edit:
    """One change to every attention, or linear mixer, whose name or path matches the glob `site`.

    An edit is an interceptor; registered alone, it changes every call. One of linear mixers has
    `change_mixer` instead of `apply`.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.drop_key("*", 0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[3.]])
    """

    site: str
    description: str
    apply: EditFunction | None
    last_key: int = -1  # largest key or token; some edited call must have that many
    change_mixer: MixerFunction | None = None

    def __post_init__(self) -> None:
        check_glob("site", self.site)

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        return proceed(call) if self.apply is None else self.apply(call, proceed, Caller())

    def edit_mixer(self, mixer: Any, proceed: MixerProceed) -> MixResult:
        """As an interceptor of linear mixers."""
        if self.change_mixer is None:
            return proceed(mixer)
        return self.change_mixer(mixer, proceed, Caller(), 0)

    def __repr__(self) -> str:
        return self.description


def as_indices(name: str, indices: Indices) -> tuple[int, ...]:
    """One or several indices as a tuple; negative heads count from the last, others are errors."""
    numbers, may_be_negative = tuple(as_ints(name, indices)), name == "heads"
    if not numbers or (min(numbers) < 0 and not may_be_negative):
        rule = "one or more" + ("" if may_be_negative else ", counted from 0")
        raise ShapeError(f"{name}: needs {rule}, got {indices}")
    return numbers


def as_selection(name: str, selection: Selection) -> tuple[int, ...] | None:
    """As `as_indices`; None stands for all and stays None."""
    return None if selection is None else as_indices(name, selection)


def check_finite(name: str, value: float, minimum: float = -torch.inf) -> None:
    """Raise unless value is a finite number and at least `minimum`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and abs(value) < torch.inf and value >= minimum):
        rule = "a finite number" + ("" if minimum == -torch.inf else f" from {minimum:g} up")
        raise ShapeError(f"{name}: needs {rule}, got {value!r}")


@dataclass(frozen=True, eq=False)
class KeyDropMask(Mask):
    """Hides some keys from some heads and query positions."""

    keys: Bool[Tensor, " key"]
    heads: Bool[Tensor, " head"]
    queries: Bool[Tensor, " position"]

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ~(self.keys[j] & self.heads[h] & self.queries[i])


@dataclass(frozen=True, eq=False)
class PeakMask(Mask):
    """Allows each query only the keys of its largest score, in some heads; ties all stay.

    `threshold` is that score minus the rounding error: products of other tile sizes round
    differently.
    """

    q: Tensor
    k: Tensor
    terms: Terms
    threshold: Tensor  # (*batch, query)
    heads: Bool[Tensor, " head"]

    def tile(self, grid: Grid) -> Tensor:
        scores = self.terms.score_tile(self.q, self.k, grid.rows, grid.keys)
        is_peak = scores >= slice_axis(self.threshold, -1, grid.rows)[..., None]
        return is_peak | ~self.heads[grid.h]


def peak_mask(call: AttentionCall, heads: Tensor) -> PeakMask:
    """The PeakMask of a call; no key is allowed where a sink has the largest score."""
    q, k, terms = call.q.detach(), call.k.detach(), call.terms
    if not k.shape[-2]:
        return PeakMask(q, k, terms, q.new_zeros(q.shape[:-1]), heads)
    per_row = q.shape[:-2].numel() * k.shape[-2]
    with torch.no_grad():
        tiles = (terms.score_tile(q, k, rows) for rows in row_bands(q.shape[-2], per_row))
        best = torch.cat([tile.amax(-1) for tile in tiles], -1)
        longest = upcast(k).norm(dim=-1).amax((-1, -2) if k.ndim > 2 else -1)
        longest = longest.view(*longest.shape, *(1,) * (best.ndim - longest.ndim))
        size = abs(terms.scale) * upcast(q).norm(dim=-1) * longest + best.abs()
        threshold = best - 8 * torch.finfo(best.dtype).eps * size
        if terms.sinks is not None:
            beaten = terms.sinks.to(best.dtype)[:, None] > best
            threshold = threshold.masked_fill(beaten, torch.inf)
    return PeakMask(q, k, terms, threshold, heads)


@dataclass(frozen=True, eq=False)
class ScaledBias(Bias):
    """A bias times one factor per head; holds q and scale for biases that depend on the query."""

    bias: Bias
    factors: Float[Tensor, " head"]
    q: Tensor
    scale: float

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.factors[h] * self.bias.at(b, h, i, j)

    def tile(self, grid: Grid, q: Tensor, scale: float) -> Tensor:
        rows = slice_axis(self.q, -2, grid.rows).to(q.dtype)
        return self.factors[grid.h] * self.bias.tile(grid, rows, self.scale)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.bias.tensors

    @property
    def depends_on_query(self) -> bool:
        return self.bias.depends_on_query


def with_scaled_scores(
    call: AttentionCall, heads: Sequence[int] | None, factor: float
) -> AttentionCall:
    """The call with every score and sink of some heads multiplied by a factor; the mask stays."""
    q, terms, dtype = call.q, call.terms, upcast(call.q).dtype
    chosen = head_mask(heads, call)
    factors = torch.ones(len(chosen), device=q.device, dtype=dtype).masked_fill(chosen, factor)
    column = factors.view(-1, 1, 1) if q.ndim > 2 else factors[0]
    if terms.bias is not None:
        terms = replace(terms, bias=ScaledBias(terms.bias, factors, q, terms.scale))
    if terms.sinks is not None:
        terms = replace(terms, sinks=(terms.sinks * factors).to(terms.sinks.dtype))
    if terms.score is None and factor and bool(chosen.all()):
        cap = terms.softcap * factor if terms.softcap else None
        return replace(call, terms=replace(terms, scale=terms.scale * factor, softcap=cap))
    if terms.score is None and (terms.softcap is None or not factor):  # 0 needs no softcap
        return replace(call, q=(q * column).to(q.dtype), terms=terms)

    def score(q: Tensor, k: Tensor, terms: Terms = call.terms) -> Tensor:
        s = terms.scale * (q @ k.mT) if terms.score is None else terms.score(q, k)
        if terms.softcap is not None:  # the factor comes after the softcap
            s = terms.softcap * torch.tanh(s / terms.softcap)
        return column.to(s.dtype) * s

    return replace(call, terms=replace(terms, softcap=None, score=score))


def with_mask(call: AttentionCall, mask: Mask) -> AttentionCall:
    """The call with one more mask."""
    old = call.terms.mask
    return replace(call, terms=replace(call.terms, mask=mask if old is None else old & mask))


def attend_without_keys(call: AttentionCall, rows: range, keys: Sequence[int]) -> AttentionResult:
    """Output and lse of some rows without some keys, in float32 or better."""
    results = []
    for band in split_rows(call.q[..., rows.start : rows.stop, :], height=256):
        part = rows[band.start : band.stop]
        inputs = (call.q, call.k, call.v, call.terms)
        results.append(attend_without(*inputs, part, excluded_keys=keys))
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def edit_rows(
    call: AttentionCall,
    name: str,
    change: Callable[[Tensor], Tensor],
    rows: Iterable[int] | None,
    heads: Sequence[int] | None,
    first: int = 0,
) -> AttentionCall:
    """The call with rows of q, k or v changed in some heads; rows count from `first`."""
    if heads is not None and name != "q":  # heads that share a key get copies
        call = replace(call, k=repeat_kv(call.k, call.q), v=repeat_kv(call.v, call.q))
    old = getattr(call, name)
    return replace(call, **{name: where_rows(call, old, change(old), rows, heads, first)})


def where_rows(
    call: AttentionCall,
    old: Tensor,
    new: Tensor,
    rows: Iterable[int] | None,
    heads: Sequence[int] | None,
    first: int = 0,
) -> Tensor:
    """New at the given rows and heads, old elsewhere; None stands for all."""
    edited = index_mask(rows, first + old.shape[-2], old)[first:, None]
    if heads is not None:
        edited = edited & head_mask_column(heads, call)
    return torch.where(edited, new.to(old.dtype), old)


def resolve_heads(heads: Sequence[int] | None, count: int) -> list[int] | None:
    """Heads counted from 0; None stands for all."""
    return None if heads is None else [resolve_index("heads", head, count) for head in heads]


def head_mask(heads: Sequence[int] | None, call: AttentionCall) -> Tensor:
    """Bool mask over the heads; all by default."""
    count = call.q.shape[-3] if call.q.ndim > 2 else 1
    return index_mask(resolve_heads(heads, count), count, call.q)


def head_mask_column(heads: Sequence[int] | None, call: AttentionCall) -> Tensor:
    """`head_mask`, shaped to broadcast with (*batch, head, n, d)."""
    mask = head_mask(heads, call)
    return mask.view(-1, 1, 1) if call.q.ndim > 2 else mask.view(1, 1)


def index_mask(indices: Iterable[int] | None, count: int, like: Tensor) -> Tensor:
    """Bool mask of `count` entries, True at the indices (None: at all); larger ones are ignored."""
    mask = torch.zeros(count, dtype=torch.bool)
    # keys of later generation steps do not exist yet
    mask[[i for i in (range(count) if indices is None else indices) if i < count]] = True
    return mask.to(like.device)
