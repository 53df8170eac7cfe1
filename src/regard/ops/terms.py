"""What makes a score out of a query and a key. One definition, used by every op and every form."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops import biases, masks
from regard.ops.biases import Bias
from regard.ops.grid import Grid, slice_axis
from regard.ops.masks import Mask

ScoreFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms on which keys are compared, apart from q and k.

    s_ij = softcap · tanh(scale · q_i · k_j / softcap) + bias_ij,   -inf where the mask says no

    `score` replaces scale · q_i · k_j by any function of (q, k). `sinks` is one score a head that
    takes its share of the softmax and gives nothing. `offset` is the position of the first query.

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
        """The scores of some rows and keys, (*batch, rows, keys), in float32 or better.

        `room` is memory to compute them in, for many tiles in turn (and for no gradient).
        """
        grid = self.grid(q, k, rows, keys)
        q, k = upcast(slice_axis(q, -2, grid.rows)), upcast(slice_axis(k, -2, grid.keys))
        if self.score is None:
            scores = _grouped_dot(q * self.scale, k, buffer)
        else:
            scores = self.score(q, repeat_kv(k, q))
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias.tile(grid, q, self.scale).to(scores.dtype)
        return self.apply_mask(scores, grid, in_place=buffer is not None)

    def apply_mask(self, scores: Tensor, grid: Grid, *, in_place: bool = False) -> Tensor:
        """The scores with -inf where the mask says no."""
        if self.mask is None or self.mask.is_full(grid.query_positions, grid.keys):
            return scores
        hidden = ~self.mask.tile(grid)
        if in_place:
            return scores.masked_fill_(hidden, -torch.inf)
        return scores.masked_fill(hidden, -torch.inf)

    def grid(
        self, q: Tensor, k: Tensor, rows: range | None = None, keys: range | None = None
    ) -> Grid:
        """The rectangle of the map that rows and keys name; all of it when not given."""
        rows = range(q.shape[-2]) if rows is None else rows
        keys = range(k.shape[-2]) if keys is None else keys
        return Grid(tuple(q.shape[:-2]), rows, keys, self.offset, q.device)

    def key_span(self, rows: range, keys: int) -> range:
        """The keys that these rows can see at all."""
        if self.mask is None:
            return range(keys)
        return self.mask.key_span(range(rows.start + self.offset, rows.stop + self.offset), keys)

    def with_sinks(self, lse: Tensor) -> Tensor:
        """The log-sum-exp once the sinks have taken their share too."""
        if self.sinks is None:
            return lse
        return torch.logaddexp(lse, self.sinks.to(lse.dtype)[:, None])

    def without(self, *names: str) -> "Terms":
        """The same terms, some of them left out."""
        return replace(self, **dict.fromkeys(names))

    @property
    def trainable_tensors(self) -> tuple[Tensor, ...]:
        """Tensors of the bias that a gradient is asked for."""
        tensors = self.bias.tensors if self.bias is not None else ()
        return tuple(t for t in tensors if t.requires_grad and torch.is_grad_enabled())


def make_terms(
    q: Tensor,
    k: Tensor,
    *,
    mask: Mask | Bool[Tensor, "... query key"] | None = None,
    bias: Bias | Float[Tensor, "... query key"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    score: ScoreFunction | None = None,
    offset: int = 0,
) -> Terms:
    """The terms as a caller may write them, checked against q and k."""
    if isinstance(mask, Tensor):
        mask = masks.DenseMask(mask)
    if isinstance(bias, Tensor):
        bias = biases.DenseBias(bias)
    _check(q, k, mask, bias, scale, softcap, sinks, score, offset)
    return Terms(
        scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
        mask=mask,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        score=score,
        offset=offset,
    )


def repeat_kv(k: Tensor, q: Tensor) -> Tensor:
    """Repeat the heads of k (or v) so that each head of q has its own."""
    return k if k.shape[:-2] == q.shape[:-2] else k.repeat_interleave(_group(q, k), -3)


def upcast(x: Tensor) -> Tensor:
    """Half-precision numbers as float32: a statistic is never computed in 8 bits of mantissa."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _group(q: Tensor, k: Tensor) -> int:
    return q.shape[-3] // k.shape[-3]


def _grouped_dot(q: Tensor, k: Tensor, room: Tensor | None) -> Tensor:
    if q.shape[:-2] == k.shape[:-2]:
        return _dot(q, k, room)
    shared = q.unflatten(-3, (k.shape[-3], -1)).flatten(-3, -2)  # a group's queries, one matrix
    return _dot(shared, k, room).unflatten(-2, (_group(q, k), -1)).flatten(-4, -3)


def _dot(q: Tensor, k: Tensor, room: Tensor | None) -> Tensor:
    if room is None or room.dtype != q.dtype:
        return q @ k.mT
    shape = torch.Size((*q.shape[:-1], k.shape[-2]))
    return torch.matmul(q, k.mT, out=room[: shape.numel()].view(shape))


def _check(
    q: Tensor,
    k: Tensor,
    mask: Mask | None,
    bias: Bias | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    score: ScoreFunction | None,
    offset: int,
) -> None:
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
    if score is not None and scale is not None:
        raise ShapeError(
            f"scale: needs to be None beside a score, which is complete by itself, got {scale}"
        )
    if scale is not None and not abs(scale) < torch.inf:
        raise ShapeError(
            f"scale: needs a finite number, got {scale}; try softargmax, which has the hard limit"
        )
    if softcap is not None and not softcap > 0:
        raise ShapeError(f"softcap: needs more than 0, got {softcap}; try None for no cap")
    if sinks is not None and sinks.shape != (heads,):
        raise ShapeError(f"sinks: needs one for each of {heads} heads, got {tuple(sinks.shape)}")
    if offset < 0:
        raise ShapeError(f"offset: needs 0 or more, got {offset}")
    if mask is not None:
        leading = q.shape[:-3] if q.ndim > 3 else q.shape[:-2]
        mask.check(leading.numel(), offset + q.shape[-2], k.shape[-2])
    if bias is not None:
        bias.check(heads, q.shape[-1])
