"""torch's own attention, and whatever calls scaled_dot_product_attention, led through the door."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from regard.inspection.adapters.mask_parser import parse_attention_mask, trim_unused_keys
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.ops import attend
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.masks import Causal
from regard.ops.survey.reference import weights_from_scores


def intercept_torch(tracker: ModuleTracker) -> None:
    """Answer torch's attention functions by `attend` while the model runs, in any thread.

    The C++ fast path of nn.TransformerEncoder knows no attention function; torch does not take it
    where functions are overridden, so the same layers run one by one. A model of our layers alone
    goes by the door anyway.
    """
    if not all(_is_ours(module) for module in tracker.modules.values()):
        tracker.run_contexts.append(lambda: _overriding(_Leading(tracker)))


@contextmanager
def _overriding(mode: TorchFunctionMode) -> Iterator[None]:
    """As `with mode`, but what was entered after it may still be there at the end."""
    mode.__enter__()
    try:
        yield
    finally:
        above = []
        while (top := _pop_mode()) is not mode:
            above.append(top)
        for other in reversed(above):
            _push_mode(other)


def _is_ours(module: nn.Module) -> bool:
    """Whether it is a layer of ours, or one of torch's in which nothing attends."""
    made_by = type(module).__module__
    attends = isinstance(module, nn.MultiheadAttention)
    return made_by.startswith(("regard.", "torch.nn.modules.")) and not attends


class _Leading(TorchFunctionMode):
    def __init__(self, running: ModuleTracker):
        super().__init__()
        self.running = running

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and not _strange(args[:3]):
            return self._attend(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._many_heads(args, kwargs)
        return func(*args, **kwargs)

    def _attend(self, *args: Any, **kwargs: Any) -> Tensor:
        return _dot_product_attention(self.running.caller.kind == "self", *args, **kwargs)

    def _many_heads(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """As asked, but always by the fused function; weights that were asked for come from lse."""
        names = F.multi_head_attention_forward.__code__.co_varnames
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        forward = _calling(self._attend)
        if not given.get("need_weights", True):
            return forward(**given)
        maps: list[Tensor] = []

        def note(call: AttentionCall, proceed: Proceed) -> AttentionResult:
            out, lse = proceed(call)
            maps.append(weights_from_scores(call.terms.score_tile(call.q, call.k), lse))
            return out, lse

        with intercepting(note):
            out, _ = forward(**{**given, "need_weights": False})
        [w] = maps
        w = w.to(out.dtype)
        w = w.mean(1) if given.get("average_attn_weights", True) else w
        return out, w if given["query"].ndim == 3 else w[0]


def _calling(attend: Callable[..., Tensor]) -> Callable[..., Any]:
    """multi_head_attention_forward with another attention in it.

    What a mode answers runs without the mode, so the function that it calls by name is replaced:
    in a copy, as torch's own is in use by other threads.
    """
    theirs = F.multi_head_attention_forward
    names = {**theirs.__globals__, "scaled_dot_product_attention": attend}
    ours = FunctionType(theirs.__code__, names, theirs.__name__, theirs.__defaults__)
    ours.__kwdefaults__ = theirs.__kwdefaults__
    names[theirs.__name__] = ours  # another mode on the way hands on this one
    return ours


def _dot_product_attention(
    same: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    front = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    q, k, v = (_folded(x, front) for x in (query, key, value))
    terms: dict[str, Any] = {"scale": scale, "dropout": dropout_p}
    if is_causal:
        terms["mask"] = Causal()
    elif attn_mask is not None:
        attn_mask = _folded(attn_mask, front) if attn_mask.ndim > 3 else attn_mask
        found = parse_attention_mask(attn_mask, q, k, same_sequence=same)
        k, v = trim_unused_keys(k, found.used_keys), trim_unused_keys(v, found.used_keys)
        terms |= {"mask": found.mask, "bias": found.bias, "offset": found.offset}
    out, _ = attend(q, k, v, **terms)
    return out.reshape(*front, *out.shape[-3:])


def _folded(x: Tensor, front: torch.Size) -> Tensor:
    """Every axis before the heads as one batch, the same for all that take part."""
    x = x.expand(*front, *x.shape[-3:])
    return x.flatten(0, -4) if len(front) > 1 else x


def _strange(tensors: tuple) -> bool:
    """Nested tensors have no plain axes; they pass by, and the sight says so."""
    return len(tensors) < 3 or any(x.is_nested for x in tensors)
