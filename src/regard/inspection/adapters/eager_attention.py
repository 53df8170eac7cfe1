"""Intercepts attention that a model writes out itself: softmax(scale · q kᵀ + bias) v.

A function mode sees every torch function that the model calls. The product q kᵀ is traced through
scale, bias and mask to the softmax, and from there to the product with the values. That product
becomes one call at `ops.intercept`, with q, k, v and the terms. The model's result is used
unless an edit changed the call. An operation that is not listed here ends the trace, and the
attention then counts as skipped: what is recorded is exact by construction.
"""

import inspect
import math
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from operator import add, and_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from regard.inspection.adapters.eager_traces import (
    HANDLERS,
    Derived,
    Lead,
    Part,
    Scores,
    Trace,
    Weights,
    added_part,
)
from regard.inspection.adapters.mask_parser import (
    HIDDEN_SCORE,
    ParsedMask,
    parse_attention_mask,
    trim_unused_keys,
)
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.adapters.snapshot import is_unchanged, mark
from regard.ops.attend.op import compute_attention, dispatch_output
from regard.ops.autocast import cast_to_autocast, is_autocast
from regard.ops.biases import Bias, DenseBias
from regard.ops.intercept import AttentionCall
from regard.ops.masks import DenseMask, Local
from regard.ops.terms import make_terms, upcast

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "num_head")
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
OTHER_PRODUCTS = ("linear", "conv", "mm", "mv", "addmm", "addbmm", "tensordot", "bilinear")
# these read shape and dtype of an argument, not its numbers
SHAPE_ONLY = re.compile(r"^new_|_like$|_as$|^size$|^to$|^type$")
# landmarks or hashes instead of one softmax over the keys: parts of it look like attention
OTHER_FORMULAS = ("LSHSelfAttention", "MraSelfAttention", "NystromformerSelfAttention")

_nested = threading.local()


class EagerTracer:
    """Runs the torch functions of one thread, and makes attention calls of softmax(…) v."""

    def __init__(self, tracker: ModuleTracker):
        self.tracker = tracker
        self._traces = WeakIdKeyDictionary()  # trace and version, by tensor

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of a torch function."""
        name = getattr(func, "__name__", "")
        if name in PRODUCTS:
            return self._product(func, args, kwargs)
        if not self._traces:
            return func(*args, **kwargs)
        several = bool(args) and isinstance(args[0], list | tuple)  # torch.cat
        traces = [self._find(x) for x in (args[0] if several else args[:3])]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self._traces.pop(args[0], None)  # changed in place
        out = func(*args, **kwargs)
        if any(traces):
            self._trace_result(name, traces, args, kwargs, out)
        return out

    def _trace_result(
        self, name: str, traces: list, args: tuple, kwargs: dict[str, Any], out: Any
    ) -> None:
        handler = HANDLERS.get(name.removesuffix("_"))
        trace = handler(traces, args, kwargs, out) if handler and isinstance(out, Tensor) else None
        uses = next((x.other_uses for x in traces if isinstance(x, Weights | Derived)), None)
        if trace is not None:
            self._remember(out, trace)
        elif uses is not None and name.startswith(OTHER_PRODUCTS):
            uses.append(name)
        elif uses is not None and not SHAPE_ONLY.search(name):
            changed = args[0] if name == "__setitem__" else out
            for x in changed if isinstance(changed, list | tuple) else (changed,):
                if isinstance(x, Tensor) and x.is_floating_point():
                    self._remember(x, Derived(uses))

    def _remember(self, x: Tensor, trace: Trace) -> None:
        self._traces[x] = (trace, mark(x))

    def _find(self, x: Any) -> Trace | None:
        entry = self._traces.get(x) if isinstance(x, Tensor) else None
        return entry[0] if entry is not None and is_unchanged(x, entry[1]) else None

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
        if isinstance(weights, Weights) and b.ndim > 1 and "input" not in given:
            return self._attend(weights, b, out, a.shape[:-2])
        self._note_use(func, a, b, given.get("input"))
        if a.ndim != b.ndim:
            return out  # a projection
        added = added_part(given.get("input"), out, given.get("beta", 1))
        self._begin(out, a, b.mT, float(given.get("alpha", 1)), added)
        return out

    def _note_use(self, func: Any, *operands: Any) -> None:
        """Note a product with weights, or with what was computed from them."""
        for x in operands:
            if isinstance(trace := self._find(x), Weights | Derived):
                trace.other_uses.append(func.__name__)

    def _begin(
        self, out: Tensor, q: Tensor, k: Tensor, scale: float = 1.0, added: tuple[Part, ...] = ()
    ) -> None:
        """Trace the product of q and k; with a parameter it is a projection."""
        if not isinstance(q, nn.Parameter) and not isinstance(k._base, nn.Parameter):
            lead = tuple(out.shape[:-2])
            scores = Scores(Part(q, lead), Part(k, lead), lead, scale, added)
            self._remember(out, scores.viewed(out))

    def _einsum(self, out: Tensor, equation: Any, *operands: Any) -> Tensor:
        pair = operands[0] if isinstance(operands[0], list | tuple) else operands
        if not isinstance(equation, str) or "." in equation or len(pair) != 2:
            self._note_use(torch.einsum, *pair)
            return out
        inputs, _, result = equation.replace(" ", "").partition("->")
        (a, b), (left, right) = pair, inputs.split(",")
        if len(result) < 2:
            return out
        weights = self._find(a)
        if isinstance(weights, Weights):  # (…, query, key), (key, …, value) to any order
            v_axes = left[:-2] + left[-1] + "".join(set(right) - set(left))
            order = left[:-1] + v_axes[-1]
            if not _fits(right, v_axes) or not _fits(result, order):
                self._note_use(torch.einsum, a)
                return out
            model_out = _permute(out, result, order)
            y = self._attend(weights, _permute(b, right, v_axes), model_out, a.shape[:-2])
            return _permute(y, order, result)
        self._note_use(torch.einsum, a, b)
        if result[-2] in right:
            (a, b), (left, right) = (b, a), (right, left)
        summed = "".join(set(left) - set(result))
        q_axes, k_axes = result[:-1] + summed, result[:-2] + result[-1] + summed
        if len(summed) == 1 and _fits(left, q_axes) and _fits(right, k_axes):
            self._begin(out, _permute(a, left, q_axes), _permute(b, right, k_axes))
        return out

    def _attend(
        self, weights: Weights, v: Tensor, model_out: Tensor, lead: Sequence[int]
    ) -> Tensor:
        """The attention call of weights and values; `model_out` is the model's product of them."""
        caller, scores, lead = self.tracker.caller, weights.scores, tuple(lead)
        front = self._batch_and_heads(scores, lead, caller.module)
        allowed, added = _masks_and_biases(scores, front) if front else (None, [])
        if front is None or not _is_attention(caller.module, scores, front, allowed):
            weights.other_uses.append("a product")
            return model_out
        q, k, value = (part.regroup(front) for part in (scores.q, scores.k, Part(v, lead)))
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
            q, k, mask=parsed.mask, bias=reduce(add, biases) if biases else None,
            scale=scores.scale, offset=parsed.offset,
        )  # fmt: skip
        value = value.to(q.dtype)
        call = AttentionCall(q, k, value, terms, weights.dropout, other_uses=weights.other_uses)
        out, lse = (part.regroup(front) for part in (Part(model_out, lead), weights.lse))
        lse = lse[..., 0]
        if allowed is not None:
            # a padded query has no weights here, as in `attend`; models average all values for it
            lse = lse.masked_fill(~allowed.any(-1).expand_as(lse), -torch.inf)
        with torch.autocast(q.device.type, enabled=False) if is_autocast(q) else nullcontext():
            result = dispatch_output(call, out, lse)
        return result.to(model_out.dtype).reshape(model_out.shape)

    @staticmethod
    def _batch_and_heads(scores: Scores, lead: Lead, module: nn.Module | None) -> Lead | None:
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


def _is_attention(
    module: nn.Module | None, scores: Scores, front: Lead, allowed: Tensor | None
) -> bool:
    """Whether softmax(scores) v is all that the module computes, from what is still there."""
    if type(module).__name__ in (*OTHER_FORMULAS, *PATTERNS) or not scores.is_unchanged:
        return False
    zeroed = (part.regroup(front) == 0 for part in scores.zeroed)  # a score of 0, not a mask
    return all(allowed is not None and not (allowed & zero).any() for zero in zeroed)


def _masks_and_biases(scores: Scores, front: Lead) -> tuple[Tensor | None, list[Tensor]]:
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


TermsOf = Callable[..., dict[str, Any]]  # mask and bias, from a module, its arguments and output

_intercepted = WeakIdKeyDictionary()  # outputs of modules: several looks may hook the same module


def intercept_sparse(tracker: ModuleTracker) -> None:
    """Make attention calls of Longformer's and BigBird's modules until the tracker closes.

    They compute a band or blocks of the map. The same queries, keys and values with a mask of that
    pattern give the same weights, so each forward pass is one call at `ops.intercept`.
    """
    for module in tracker.modules.values():
        if terms_of := PATTERNS.get(type(module).__name__):
            tracker.add_output_hook(module, partial(_attend, terms_of))


def _attend(terms_of: TermsOf, module: Any, args: tuple, kwargs: dict[str, Any], out: tuple) -> Any:
    if out[0] in _intercepted:
        return None
    with torch._C.DisableTorchFunction():
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        heads = getattr(module, "num_heads", None) or module.num_attention_heads
        layers = (module.query, module.key, module.value)
        q, k, v = (_split_heads(layer(given["hidden_states"]), heads) for layer in layers)
        model_out = _split_heads(out[0], heads)
        call = AttentionCall(q, k, v, make_terms(q, k, **terms_of(module, given, out)))
        # rows without weights: padding, or tokens whose global attention has other projections
        result = dispatch_output(call, model_out, compute_attention(call)[1]).to(model_out.dtype)
        merged = result.transpose(1, 2).flatten(2)
        _intercepted[merged] = True
        return (merged, *out[1:])


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _window(module: Any, given: dict[str, Any], out: tuple) -> dict[str, Any]:
    """A window and the keys with global attention, for the queries without; no padding."""
    padded, has_global = given["is_index_masked"], given["is_index_global_attn"]
    rows = DenseMask(~(padded | has_global)[:, None, :, None])
    local = Local(module.one_sided_attn_window_size) & DenseMask(~padded[:, None, None])
    return {"mask": rows & (local | DenseMask(has_global[:, None, None]))}


def _blocks(module: Any, given: dict[str, Any], out: tuple) -> dict[str, Any]:
    """The pattern of the map that the module returns, part of which is random.

    Outside of training every random block is block 0, which the softmax then counts again. The
    weights of the returned map do not: its rows sum to less than 1.
    """
    w = out[1]
    if w is None:  # before version 5 the map is returned on request only
        w = type(module).forward(**{**given, "output_attentions": True})[1]
    mask = DenseMask((w > 0) & (given["from_mask"] > 0))
    if module.training:
        return {"mask": mask}
    size, counts = module.block_size, torch.ones(w.shape[-2:], device=w.device)
    counts[size:-size, :size] += module.num_random_blocks
    return {"mask": mask, "bias": counts.log()}


PATTERNS: dict[str, TermsOf] = {
    "LongformerSelfAttention": _window,
    "LEDEncoderSelfAttention": _window,
    "BigBirdBlockSparseAttention": _blocks,
    "BigBirdPegasusBlockSparseAttention": _blocks,
}
