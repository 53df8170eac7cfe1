"""The terms of an attention score besides q and k: one definition for every op and backend."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops import biases, masks
from regard.ops.biases import Bias
from regard.ops.grid import Grid, slice_axis
from regard.ops.masks import Mask
from regard.ops.packed_linear import batched_product

LOG2E = 1.4426950408889634  # on a CPU exp2 of a large negative number is 40 times faster than exp
LOWEST_SCORE = -1e30  # stands for -inf where 0 · log 0 must be 0

ScoreFunction = Callable[[Tensor, Tensor], Tensor]


class TermOptions(TypedDict, total=False):
    """Keyword arguments that `attend`, `survey`, `window` and `influence` share; see `Terms`.

    Args:
        mask: which keys each query may attend to: a `Mask`, or a boolean tensor (True: allowed).
        bias: what is added to the scores: a `Bias`, or a tensor.
        scale: factor of q · k, 1/√head_dim by default.
        softcap: bound of the scores, softcap · tanh(s / softcap), before bias and mask.
        sinks: one logit per head that takes part in the softmax and has no value.
        score: function of (q, k) that replaces scale · q · k.
        offset: position of the first query among the keys (the number of cached keys).
    """

    mask: Mask | Bool[Tensor, "... query key"] | None
    bias: Bias | Float[Tensor, "... query key"] | None
    scale: float | None
    softcap: float | None
    sinks: Float[Tensor, " head"] | None
    score: ScoreFunction | None
    offset: int


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a score besides q and k, checked.

    s_ij = softcap · tanh(scale · q_i · k_j / softcap) + bias_ij,   -inf where masked

    `TermOptions` describes the fields.

    >>> q = k = torch.tensor([[1.0], [2.0]])
    >>> Terms(scale=0.5, mask=rg.Causal()).score_tile(q, k)
    tensor([[0.5000,   -inf],
            [1.0000, 2.0000]])
    """

    scale: float
    mask: Mask | None = None
    bias: Bias | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " head"] | None = None
    score: ScoreFunction | None = None
    offset: int = 0

    def score_tile(
        self,
        q: Tensor,
        k: Tensor,
        rows: range | None = None,
        keys: range | None = None,
        *,
        buffer: Tensor | None = None,
    ) -> Tensor:
        """The scores of a range of rows and keys, (*batch, rows, keys), in float32 or better.

        `buffer` is memory to compute them in, reused from tile to tile; no gradient then.
        """
        grid = self.grid(q, k, rows, keys)
        q, k = upcast(slice_axis(q, -2, grid.rows)), upcast(slice_axis(k, -2, grid.keys))
        if self.score is None:
            scores = grouped_dot(q * self.scale, k, buffer)
        else:
            scores = self.score(q, repeat_kv(k, q))
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias.tile(grid, q, self.scale).to(scores.dtype)
        if self.mask is None or self.mask.is_full(grid.query_positions, grid.keys):
            return scores
        fill = scores.masked_fill if buffer is None else scores.masked_fill_
        return fill(~self.mask.tile(grid), -torch.inf)

    def grid(
        self, q: Tensor, k: Tensor, rows: range | None = None, keys: range | None = None
    ) -> Grid:
        """The rectangle of the map with these rows and keys; all by default."""
        rows = range(q.shape[-2]) if rows is None else rows
        keys = range(k.shape[-2]) if keys is None else keys
        return Grid(tuple(q.shape[:-2]), rows, keys, self.offset, q.device)

    def key_span(self, rows: range, keys: int) -> range:
        """The smallest known range that holds every key visible to these rows."""
        if self.mask is None:
            return range(keys)
        return self.mask.key_span(range(rows.start + self.offset, rows.stop + self.offset), keys)

    def with_sinks(self, lse: Tensor) -> Tensor:
        """The log-sum-exp including the sinks."""
        if self.sinks is None:
            return lse
        return torch.logaddexp(lse, self.sinks.to(lse.dtype)[:, None])

    def add_sinks(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp including the sinks, which only scale the output down."""
        if self.sinks is None:
            return out, lse
        total = self.with_sinks(lse)
        return (out * torch.exp(lse - total)[..., None]).to(out.dtype), total

    def without(self, *names: str) -> "Terms":
        """A copy with the named terms set to None."""
        return replace(self, **dict.fromkeys(names))

    @property
    def trainable_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the bias that require a gradient."""
        tensors = self.bias.tensors if self.bias is not None else ()
        return tuple(t for t in tensors if t.requires_grad and torch.is_grad_enabled())


def make_terms(q: Tensor, k: Tensor, **options: Unpack[TermOptions]) -> Terms:
    """Build `Terms` from a caller's keyword arguments, checked against q and k."""
    _check_shapes(q, k, options.get("score"))
    mask, bias, scale = options.get("mask"), options.get("bias"), options.get("scale")
    if isinstance(mask, Tensor):
        options["mask"] = masks.DenseMask(mask)
    if isinstance(bias, Tensor):
        options["bias"] = biases.DenseBias(bias)
    options["scale"] = float(q.shape[-1] ** -0.5 if scale is None else scale)
    terms = Terms(**options)  # pyright: ignore[reportArgumentType] tensors are wrapped above
    _check(q, k, terms, scale)
    return terms


def weights_from_scores(scores: Tensor, lse: Tensor) -> Tensor:
    """The attention weights w = exp(scores - lse); 0 in a row without visible keys."""
    return torch.exp(scores - finite_lse(lse)[..., None])


def finite_lse(lse: Tensor) -> Tensor:
    """The log-sum-exp with 0 for -inf, so that exp(-inf - lse) is 0 and not NaN."""
    return lse.masked_fill(lse == -torch.inf, 0)


def check_lse(q: Tensor, lse: Tensor) -> None:
    """Raise a ShapeError unless there is one log-sum-exp per query."""
    if lse.shape != q.shape[:-1]:
        raise ShapeError(
            f"lse: needs one for each query, {tuple(q.shape[:-1])}, got {tuple(lse.shape)}; "
            "try the second result of attend"
        )


def repeat_kv(k: Tensor, q: Tensor) -> Tensor:
    """Repeat the heads of k (or v) so that each head of q has one."""
    return k if k.shape[:-2] == q.shape[:-2] else k.repeat_interleave(_group(q, k), -3)


def upcast(x: Tensor) -> Tensor:
    """Half precision as float32, other dtypes unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _group(q: Tensor, k: Tensor) -> int:
    return q.shape[-3] // k.shape[-3]


def grouped_dot(q: Tensor, k: Tensor, buffer: Tensor | None) -> Tensor:
    """q kᵀ, in `buffer` if there is one; k may have fewer heads (grouped-query attention)."""
    if q.shape[:-2] == k.shape[:-2]:
        return _dot(q, k, buffer)
    # all queries of a group in one matrix
    shared = q.unflatten(-3, (k.shape[-3], -1)).flatten(-3, -2)
    return _dot(shared, k, buffer).unflatten(-2, (_group(q, k), -1)).flatten(-4, -3)


def _dot(q: Tensor, k: Tensor, buffer: Tensor | None) -> Tensor:
    if buffer is None or buffer.dtype != q.dtype:
        return q @ k.mT
    shape = torch.Size((*q.shape[:-1], k.shape[-2]))
    return batched_product(q, k, buffer[: shape.numel()].view(shape))


def _check_shapes(q: Tensor, k: Tensor, score: ScoreFunction | None) -> None:
    if q.ndim < 2 or k.ndim != q.ndim:
        raise ShapeError(
            f"k: needs as many axes as q, 2 or more, got {tuple(k.shape)} for q {tuple(q.shape)}"
        )
    if score is None and q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"k: needs head_dim={q.shape[-1]} as q has, got {k.shape[-1]}; "
            "try score=bilinear, which lets them differ"
        )
    if q.shape[:-3] != k.shape[:-3]:
        raise ShapeError(
            f"k: needs the leading axes {tuple(q.shape[:-3])} of q, got {tuple(k.shape[:-3])}"
        )
    heads, kv_heads = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else (1, 1)
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            f"q: needs a multiple of the {kv_heads} heads of k, got {heads}; "
            "try equal counts, or one key head for all"
        )
    if q.shape[-1] == 0:
        raise ShapeError("q: needs head_dim of 1 or more, got 0")


def _check(q: Tensor, k: Tensor, terms: Terms, scale: float | None) -> None:
    heads, sinks = q.shape[-3] if q.ndim > 2 else 1, terms.sinks
    if terms.score is not None and scale is not None:
        raise ShapeError(
            f"scale: needs None beside score, which replaces scale · q · k, got {scale}"
        )
    if not abs(terms.scale) < torch.inf:
        raise ShapeError(
            f"scale: needs a finite number, got {scale}; try softargmax, which has the hard limit"
        )
    if terms.softcap is not None and not terms.softcap > 0:
        raise ShapeError(f"softcap: needs more than 0, got {terms.softcap}; try None for no cap")
    if sinks is not None and sinks.shape != (heads,):
        raise ShapeError(f"sinks: needs one for each of {heads} heads, got {tuple(sinks.shape)}")
    if terms.offset < 0:
        raise ShapeError(f"offset: needs 0 or more, got {terms.offset}")
    if terms.mask is not None:
        leading = q.shape[:-3] if q.ndim > 3 else q.shape[:-2]
        terms.mask.check(leading.numel(), terms.offset + q.shape[-2], k.shape[-2])
    if terms.bias is not None:
        terms.bias.check(heads, q.shape[-1])
