"""Intercepts attention that a model writes out itself: softmax(scale · q kᵀ + bias) v.

A function mode sees every torch function that the model calls. The product q kᵀ is traced through
scale, bias and mask to the softmax, and from there to the product with the values. That product
becomes one call at `ops.intercept`, with q, k, v and the terms. The model's own result is used
unless an edit changed the call. An operation that is not listed here ends the trace, and the
attention then counts as skipped: what is recorded is exact by construction.
"""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, and_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from regard.inspection.adapters.mask_parser import (
    HIDDEN_SCORE,
    ParsedMask,
    parse_attention_mask,
    trim_unused_keys,
)
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.adapters.sparse_attention import PATTERNS
from regard.ops.attend.op import compute_attention
from regard.ops.autocast import cast_to_autocast, is_autocast
from regard.ops.biases import Bias, DenseBias
from regard.ops.intercept import AttentionCall, AttentionResult, dispatch
from regard.ops.terms import make_terms, upcast

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "num_head")
# landmarks or hashes instead of one softmax over the keys: parts of it look like attention
OTHER_FORMULAS = ("LSHSelfAttention", "MraSelfAttention", "NystromformerSelfAttention", *PATTERNS)

Lead = tuple[int, ...]  # sizes of the axes before the last two


@dataclass(frozen=True)
class _Part:
    """A tensor that broadcasts to the scores, whose leading axes had these sizes at that time."""

    x: Tensor
    lead: Lead
    factor: float = 1.0

    def regroup(self, front: Lead) -> Tensor:
        """The tensor with batch and heads as its leading axes; axes of size 1 may stay."""
        x, *last = self.x, *self.x.shape[-2:]
        x = x.reshape((1,) * (len(self.lead) + 2 - x.ndim) + tuple(x.shape))
        if math.prod(x.shape[:-2]) == 1:
            return x.reshape(1, 1, *last)
        return x if self.lead == front else x.expand(*self.lead, *last).reshape(*front, *last)


@dataclass(frozen=True)
class _Scores:
    """scale · q kᵀ + added, where allowed."""

    q: _Part  # (*lead, query, head_dim)
    k: _Part  # (*lead, key, head_dim)
    lead: Lead  # now; views may regroup the leading axes
    scale: float = 1.0
    added: tuple[_Part, ...] = ()
    allowed: tuple[_Part, ...] = ()
    zeroed: tuple[_Part, ...] = ()  # 0 where the scores were set to 0: w * b - 1e4 * (1 - b)
    batch_and_heads: Lead | None = None  # of the first tensor with four axes

    def viewed(self, x: Tensor) -> "_Scores":
        """The same scores as a view with other leading axes."""
        lead = tuple(x.shape[:-2])
        known = self.batch_and_heads or (lead if len(lead) == 2 else None)
        return replace(self, lead=lead, batch_and_heads=known)

    def scaled(self, factor: float) -> "_Scores":
        added = tuple(replace(part, factor=part.factor * factor) for part in self.added)
        return replace(self, scale=self.scale * factor, added=added)


@dataclass(frozen=True)
class _Weights:
    """Softmax of traced scores."""

    scores: _Scores
    lse: _Part  # (*lead, query, 1)
    dropout: float = 0.0

    def viewed(self, x: Tensor) -> "_Weights":
        return replace(self, scores=self.scores.viewed(x))


_Trace = _Scores | _Weights
_nested = threading.local()


class EagerTracer:
    """Runs the torch functions of one thread, and makes attention calls of softmax(…) v."""

    def __init__(self, tracker: ModuleTracker):
        self.tracker = tracker
        self._traces = WeakIdKeyDictionary()  # trace and version, by tensor

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of a torch function."""
        name = getattr(func, "__name__", "")
        if name in ("matmul", "bmm", "baddbmm", "einsum"):
            return self._product(func, args, kwargs)
        if name == "__get__" or not self._traces:
            return func(*args, **kwargs)
        traces = [self._find(x) for x in args[:3]]
        out = func(*args, **kwargs)
        handler = _HANDLERS.get(name.removesuffix("_")) if any(traces) else None
        trace = handler(traces, args, kwargs, out) if handler and isinstance(out, Tensor) else None
        if trace is not None:
            self._remember(out, trace)
        elif name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self._traces.pop(args[0], None)  # changed in place by another operation
        return out

    def _remember(self, x: Tensor, trace: _Trace) -> None:
        self._traces[x] = (trace, None if x.is_inference() else x._version)

    def _find(self, x: Any) -> _Trace | None:
        entry = self._traces.get(x) if isinstance(x, Tensor) else None
        if entry is None or (entry[1] is not None and entry[1] != x._version):
            return None  # or changed through a view
        return entry[0]

    def _product(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if getattr(_nested, "active", False):
            return func(*args, **kwargs)
        _nested.active = True  # then the tracer of an outer look sees no product, and no attention
        try:
            out = func(*args, **kwargs)
        finally:
            _nested.active = False
        if func.__name__ == "einsum":
            return self._einsum(out, *args)
        names = ("input", "batch1", "batch2") if func.__name__ == "baddbmm" else ("a", "b")
        given = dict(zip(names, (*args, *kwargs.values()), strict=False)) | kwargs
        a, b = (given[name] for name in names[-2:])
        weights = self._find(a)
        if a.ndim != b.ndim:
            return out  # a projection
        if isinstance(weights, _Weights):
            return out if "input" in given else self._attend(weights, b, out, a.shape[:-2])
        added = _added(given.get("input"), out, given.get("beta", 1))
        self._begin(out, a, b.mT, float(given.get("alpha", 1)), added)
        return out

    def _begin(
        self, out: Tensor, q: Tensor, k: Tensor, scale: float = 1.0, added: tuple[_Part, ...] = ()
    ) -> None:
        """Trace the product of q and k; with a parameter it is a projection."""
        if not isinstance(q, nn.Parameter) and not isinstance(k._base, nn.Parameter):
            lead = tuple(out.shape[:-2])
            scores = _Scores(_Part(q, lead), _Part(k, lead), lead, scale, added)
            self._remember(out, scores.viewed(out))

    def _einsum(self, out: Tensor, equation: Any, *operands: Any) -> Tensor:
        pair = operands[0] if isinstance(operands[0], list | tuple) else operands
        if not isinstance(equation, str) or "." in equation or len(pair) != 2:
            return out
        inputs, _, result = equation.replace(" ", "").partition("->")
        (a, b), (left, right) = pair, inputs.split(",")
        if len(result) < 2:
            return out
        weights = self._find(a)
        if isinstance(weights, _Weights):  # (…, query, key), (key, …, value) to any order
            v_axes = left[:-2] + left[-1] + "".join(set(right) - set(left))
            order = left[:-1] + v_axes[-1]
            if not _fits(right, v_axes) or not _fits(result, order):
                return out
            own = _permute(out, result, order)
            y = self._attend(weights, _permute(b, right, v_axes), own, a.shape[:-2])
            return _permute(y, order, result)
        if result[-2] in right:
            (a, b), (left, right) = (b, a), (right, left)
        summed = "".join(set(left) - set(result))
        q_axes, k_axes = result[:-1] + summed, result[:-2] + result[-1] + summed
        if len(summed) == 1 and _fits(left, q_axes) and _fits(right, k_axes):
            self._begin(out, _permute(a, left, q_axes), _permute(b, right, k_axes))
        return out

    def _attend(self, weights: _Weights, v: Tensor, own: Tensor, lead: Sequence[int]) -> Tensor:
        """The attention call of weights and values; `own` is the model's product of them."""
        caller, scores, lead = self.tracker.caller, weights.scores, tuple(lead)
        front = self._batch_and_heads(scores, lead, caller.module)
        if front is None or type(caller.module).__name__ in OTHER_FORMULAS:
            return own
        allowed, added = _masks_and_biases(scores, front)
        for part in scores.zeroed:
            if allowed is None or (allowed & (part.regroup(front) == 0)).any():
                return own  # a score of 0, not a mask
        q, k, value = (part.regroup(front) for part in (scores.q, scores.k, _Part(v, lead)))
        q, same = q.expand(*front, -1, -1), caller.kind == "self"
        kv_heads = front[1] if {k.shape[1], value.shape[1]} != {1} else 1
        k, value = (x.expand(front[0], kv_heads, -1, -1) for x in (k, value))
        if is_autocast(q):
            q, k, value = cast_to_autocast(q, k, value)
        sizes = (q.shape[2], k.shape[2])
        parsed = ParsedMask(offset=max(0, sizes[1] - sizes[0]) if same else 0)
        if allowed is not None:
            allowed = allowed.expand(*allowed.shape[:2], *sizes)
            window = int(allowed[0, 0, -1].sum())  # of a local mask
            parsed = parse_attention_mask(allowed, q, k, same_sequence=same, window=window)
        k, value = (trim_unused_keys(x, parsed.used_keys) for x in (k, value))
        biases: list[Bias] = [DenseBias(x[..., : k.shape[2]]) for x in added]
        terms = make_terms(
            q,
            k,
            mask=parsed.mask,
            bias=reduce(add, biases) if biases else None,
            scale=scores.scale,
            offset=parsed.offset,
        )
        call = AttentionCall(q, k, value.to(q.dtype), terms, weights.dropout)
        out, lse = (part.regroup(front) for part in (_Part(own, lead), weights.lse))
        lse = lse[..., 0]
        if allowed is not None and not (visible := allowed.any(-1).expand_as(lse)).all():
            # a padded query has no weights here, as in `attend`; models average all values for it
            out, lse = out * visible[..., None], lse.masked_fill(~visible, -torch.inf)

        def compute(edited: AttentionCall) -> AttentionResult:
            return (out, lse) if edited is call else compute_attention(edited)

        with torch.autocast(q.device.type, enabled=False) if is_autocast(q) else nullcontext():
            result, _ = dispatch(call, compute)
        return result.to(own.dtype).reshape(own.shape)

    @staticmethod
    def _batch_and_heads(scores: _Scores, lead: Lead, module: nn.Module | None) -> Lead | None:
        """Sizes of batch and heads; None if one axis cannot be split into them."""
        sources = (module, getattr(module, "config", None))
        counts = [getattr(source, name, None) for source in sources for name in HEAD_COUNTS]
        heads = next((n for n in counts if isinstance(n, int) and n > 0), None)
        if len(lead) == 1:
            if heads is None and scores.batch_and_heads is not None:
                return scores.batch_and_heads
            heads = heads or 1
            return None if lead[0] % heads else (lead[0] // heads, heads)
        if len(lead) > 2 and heads not in (None, lead[-1]):
            return None  # the heads are another axis
        return (math.prod(lead[:-1]), *lead[-1:]) if lead else (1, 1)


def _masks_and_biases(scores: _Scores, front: Lead) -> tuple[Tensor | None, list[Tensor]]:
    """Where keys are visible, and what is added to the scores there."""
    allowed, added = [part.regroup(front) for part in scores.allowed], []
    for part in scores.added:
        x = upcast(part.regroup(front)) * part.factor
        if (hidden := x <= HIDDEN_SCORE).any():
            allowed.append(~hidden)
            x = x.masked_fill(hidden, 0)
        if x.requires_grad or x.any():
            added.append(x)
    return (reduce(and_, allowed) if allowed else None), added


def _fits(axes: str, target: str) -> bool:
    return sorted(axes) == sorted(target) and len(set(axes)) == len(axes)


def _permute(x: Tensor, axes: str, target: str) -> Tensor:
    return x.permute([axes.index(axis) for axis in target])


def _added(other: Any, out: Tensor, factor: float = 1) -> tuple[_Part, ...]:
    """What is added to the scores: a tensor or a number."""
    if other is None or factor == 0 or (isinstance(other, int | float) and other == 0):
        return ()
    other = other if isinstance(other, Tensor) else out.new_full((1, 1), other)
    other = other if other.ndim > 1 else other.reshape(1, -1)
    return (_Part(other, tuple(out.shape[:-2]), float(factor)),)


# Handlers: from the traces and arguments of a function to the trace of its result, or None.


def _keep(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
    same = out.shape[-2:] == args[0].shape[-2:] and out.numel() == args[0].numel()
    return traces[0].viewed(out) if traces[0] and same and out.is_floating_point() else None


def _scale(divides: bool) -> Callable[..., _Trace | None]:
    def handle(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
        at = 0 if divides or isinstance(traces[0], _Scores) else 1
        scores, other = traces[at], args[1 - at]
        if not isinstance(scores, _Scores) or kwargs or out.shape != args[at].shape:
            return None
        if isinstance(other, Tensor) and other.numel() > 1:
            if divides or scores.added:
                return None
            if other.ndim > 2 and other.shape[-2:] == (1, 1) and scores.q.lead == scores.lead:
                return replace(scores, q=replace(scores.q, x=scores.q.x * other))  # per head
            if ((other == 0) | (other == 1)).all():
                return replace(scores, zeroed=(*scores.zeroed, _Part(other, scores.lead)))
            return None
        factor = 1 / float(other) if divides else float(other)
        return scores.scaled(factor) if factor > 0 else None

    return handle


def _add(sign: int) -> Callable[..., _Trace | None]:
    def handle(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
        at = 0 if sign < 0 or isinstance(traces[0], _Scores) else 1
        scores, other = traces[at], args[1 - at]
        if not isinstance(scores, _Scores) or out.shape != args[at].shape:
            return None
        if at == 1 and kwargs:  # alpha · scores
            return None
        added = _added(other, out, sign * kwargs.get("alpha", 1))
        return replace(scores, added=scores.added + added)

    return handle


def _mask(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
    """masked_fill(scores, mask, value)"""
    mask, value = (*args[1:], *(kwargs[name] for name in ("mask", "value") if name in kwargs))
    if isinstance(traces[0], _Weights):  # hidden weights are 0, or NaN in a row of them
        stays = out is not args[0] and torch.equal(out, args[0].nan_to_num())
        return traces[0] if stays else None
    return _allow(traces[0], ~mask, value, out)


def _where(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
    """where(condition, scores, value), where(condition, value, scores), scores.where(condition)"""
    if len(args) != 3:
        return None
    first, second, third = args
    if traces[0]:
        return _allow(traces[0], second, third, out)
    if traces[1]:
        return _allow(traces[1], first, third, out)
    return _allow(traces[2], ~first, second, out)


def _allow(scores: Any, allowed: Tensor, value: Any, out: Tensor) -> _Trace | None:
    if not isinstance(scores, _Scores) or not _is_hidden(value) or allowed.dtype != torch.bool:
        return None
    return replace(scores, allowed=(*scores.allowed, _Part(allowed, tuple(out.shape[:-2]))))


def _clamp(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
    """maximum(scores, lowest) or clamp(scores, min=lowest): hidden scores stay hidden"""
    limits = [*args[1:], *(kwargs[name] for name in ("min", "other") if name in kwargs)]
    one = len(limits) == 1 == len(args) + len(kwargs) - 1 and _is_hidden(limits[0])
    return traces[0] if one and isinstance(traces[0], _Scores) else None


def _is_hidden(value: Any) -> bool:
    is_number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    return is_number and float(value) <= HIDDEN_SCORE


def _softmax(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
    scores, numbers, *rest = traces[0], *args
    dim = kwargs.get("dim", rest[0] if rest else None)
    if not isinstance(scores, _Scores) or dim not in (-1, out.ndim - 1):
        return None
    lse = upcast(numbers).logsumexp(-1, keepdim=True)
    return _Weights(scores, _Part(lse, tuple(lse.shape[:-2])))


def _dropout(traces: list, args: tuple, kwargs: dict, out: Tensor) -> _Trace | None:
    if not isinstance(traces[0], _Weights):
        return None
    given = {"p": 0.5, "training": True}
    given |= dict(zip(("p", "training"), args[1:], strict=False)) | kwargs
    return replace(traces[0], dropout=float(given["p"]) if given["training"] else 0.0)


_KEPT = "to float double half bfloat16 type type_as contiguous clone"
_KEPT += " view reshape view_as unsqueeze squeeze flatten unflatten"
_HANDLERS: dict[str, Callable[..., _Trace | None]] = {
    **dict.fromkeys(_KEPT.split(), _keep),
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
