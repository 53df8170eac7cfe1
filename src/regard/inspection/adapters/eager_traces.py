"""Traces of scores and weights through the torch functions of attention that a model writes out.

A handler says what a function does to a trace: of its result there is one too, or none.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.inspection.adapters.mask_parser import HIDDEN_SCORE
from regard.inspection.adapters.snapshot import Mark, is_unchanged, mark
from regard.ops.terms import upcast

Lead = tuple[int, ...]  # sizes of the axes before the last two


@dataclass(frozen=True)
class Part:
    """A tensor that broadcasts to the scores, whose leading axes had these sizes at that time."""

    x: Tensor
    lead: Lead
    factor: float = 1.0
    since: Mark = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "since", mark(self.x))

    @property
    def is_unchanged(self) -> bool:
        """Whether the tensor still is what the scores were computed from."""
        return is_unchanged(self.x, self.since)

    def regroup(self, front: Lead) -> Tensor:
        """The tensor with batch and heads as its leading axes; axes of size 1 may stay."""
        x, *last = self.x, *self.x.shape[-2:]
        x = x.reshape((1,) * (len(self.lead) + 2 - x.ndim) + tuple(x.shape))
        if math.prod(x.shape[:-2]) == 1:
            return x.reshape(1, 1, *last)
        return x if self.lead == front else x.expand(*self.lead, *last).reshape(*front, *last)


@dataclass(frozen=True)
class Scores:
    """scale · q kᵀ + added, where allowed."""

    q: Part  # (*lead, query, head_dim)
    k: Part  # (*lead, key, head_dim)
    lead: Lead  # now; views may regroup the leading axes
    scale: float = 1.0
    added: tuple[Part, ...] = ()
    allowed: tuple[Part, ...] = ()
    zeroed: tuple[Part, ...] = ()  # 0 where the scores were set to 0: w * b - 1e4 * (1 - b)
    batch_and_heads: Lead | None = None  # of the first tensor with four axes

    @property
    def is_unchanged(self) -> bool:
        """Whether the model wrote to nothing that the scores were computed from."""
        parts = (self.q, self.k, *self.added, *self.allowed, *self.zeroed)
        return all(part.is_unchanged for part in parts)

    def viewed(self, x: Tensor) -> "Scores":
        """The same scores as a view with other leading axes."""
        lead = tuple(x.shape[:-2])
        known = self.batch_and_heads or (lead if len(lead) == 2 else None)
        return replace(self, lead=lead, batch_and_heads=known)

    def scaled(self, factor: float) -> "Scores":
        added = tuple(Part(part.x, part.lead, part.factor * factor) for part in self.added)
        return replace(self, scale=self.scale * factor, added=added)


@dataclass(frozen=True)
class Weights:
    """Softmax of traced scores."""

    scores: Scores
    lse: Part  # (*lead, query, 1)
    dropout: float = 0.0
    other_uses: list[str] = field(default_factory=list)  # products that make no attention call

    def viewed(self, x: Tensor) -> "Weights":
        return replace(self, scores=self.scores.viewed(x))


@dataclass(frozen=True)
class Derived:
    """Computed from weights in another way: a product with it uses them a second time."""

    other_uses: list[str]


Trace = Scores | Weights | Derived


def added_part(other: Any, out: Tensor, factor: float = 1) -> tuple[Part, ...]:
    """What is added to the scores: a tensor or a number."""
    if other is None or factor == 0 or (isinstance(other, int | float) and other == 0):
        return ()
    other = other if isinstance(other, Tensor) else out.new_full((1, 1), other)
    other = other if other.ndim > 1 else other.reshape(1, -1)
    return (Part(other, tuple(out.shape[:-2]), float(factor)),)


# Handlers: from the traces and arguments of a function to the trace of its result, or None.


def _keep(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
    same = out.shape[-2:] == args[0].shape[-2:] and out.numel() == args[0].numel()
    known = isinstance(traces[0], Scores | Weights)
    return traces[0].viewed(out) if known and same and out.is_floating_point() else None


def _scale(divides: bool) -> Callable[..., Trace | None]:
    def handle(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
        at = 0 if divides or isinstance(traces[0], Scores) else 1
        scores, other = traces[at], args[1 - at]
        if not isinstance(scores, Scores) or kwargs or out.shape != args[at].shape:
            return None
        if isinstance(other, Tensor) and other.numel() > 1:
            if divides or scores.added:
                return None
            if other.ndim > 2 and other.shape[-2:] == (1, 1) and scores.q.lead == scores.lead:
                return replace(scores, q=replace(scores.q, x=scores.q.x * other))  # per head
            if ((other == 0) | (other == 1)).all():
                return replace(scores, zeroed=(*scores.zeroed, Part(other, scores.lead)))
            return None
        factor = 1 / float(other) if divides else float(other)
        return scores.scaled(factor) if factor > 0 else None

    return handle


def _add(sign: int) -> Callable[..., Trace | None]:
    def handle(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
        at = 0 if sign < 0 or isinstance(traces[0], Scores) else 1
        scores, other = traces[at], args[1 - at]
        if not isinstance(scores, Scores) or out.shape != args[at].shape:
            return None
        if at == 1 and kwargs:  # alpha · scores
            return None
        added = added_part(other, out, sign * kwargs.get("alpha", 1))
        return replace(scores, added=scores.added + added)

    return handle


def _mask(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
    """masked_fill(scores, mask, value)"""
    mask, value = (*args[1:], *(kwargs[name] for name in ("mask", "value") if name in kwargs))
    if isinstance(traces[0], Weights):  # hidden weights are 0, or NaN in a row of them
        stays = out is not args[0] and torch.equal(out, args[0].nan_to_num())
        return traces[0] if stays else None
    return _allow(traces[0], ~mask, value, out)


def _where(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
    """where(condition, scores, value), where(condition, value, scores), scores.where(condition)"""
    if len(args) != 3:
        return None
    first, second, third = args
    if traces[0]:
        return _allow(traces[0], second, third, out)
    if traces[1]:
        return _allow(traces[1], first, third, out)
    return _allow(traces[2], ~first, second, out)


def _allow(scores: Any, allowed: Tensor, value: Any, out: Tensor) -> Trace | None:
    if not isinstance(scores, Scores) or not _is_hidden(value) or allowed.dtype != torch.bool:
        return None
    return replace(scores, allowed=(*scores.allowed, Part(allowed, tuple(out.shape[:-2]))))


def _clamp(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
    """maximum(scores, lowest) or clamp(scores, min=lowest): hidden scores stay hidden"""
    limits = [*args[1:], *(kwargs[name] for name in ("min", "other") if name in kwargs)]
    one = len(limits) == 1 == len(args) + len(kwargs) - 1 and _is_hidden(limits[0])
    return traces[0] if one and isinstance(traces[0], Scores) else None


def _is_hidden(value: Any) -> bool:
    is_number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    return is_number and float(value) <= HIDDEN_SCORE


def _softmax(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
    scores, numbers, *rest = traces[0], *args
    dim = kwargs.get("dim", rest[0] if rest else None)
    if not isinstance(scores, Scores) or dim not in (-1, out.ndim - 1):
        return None
    lse = upcast(numbers).logsumexp(-1, keepdim=True)
    return Weights(scores, Part(lse, tuple(lse.shape[:-2])))


def _dropout(traces: list, args: tuple, kwargs: dict, out: Tensor) -> Trace | None:
    if not isinstance(traces[0], Weights):
        return None
    given = {"p": 0.5, "training": True}
    given |= dict(zip(("p", "training"), args[1:], strict=False)) | kwargs
    return replace(traces[0], dropout=float(given["p"]) if given["training"] else 0.0)


_SAME_VALUES = "to float double half bfloat16 type type_as contiguous clone"
_SAME_VALUES += " view reshape view_as unsqueeze squeeze flatten unflatten"
HANDLERS: dict[str, Callable[..., Trace | None]] = {
    **dict.fromkeys(_SAME_VALUES.split(), _keep),
    **dict.fromkeys(("mul", "multiply"), _scale(divides=False)),
    **dict.fromkeys(("div", "divide", "true_divide"), _scale(divides=True)),
    "add": _add(1),
    "sub": _add(-1),
    "masked_fill": _mask,
    "where": _where,
    **dict.fromkeys(("max", "maximum", "clamp", "clamp_min"), _clamp),
    **dict.fromkeys(("softmax", "special_softmax"), _softmax),
    "dropout": _dropout,
}
