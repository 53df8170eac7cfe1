"""Routes nn.MultiheadAttention and scaled_dot_product_attention through `ops.attend`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from regard.inspection.adapters.eager_attention import EagerTracer
from regard.inspection.adapters.forward_code import FUSED, INTERFACE, PRODUCTS, called_names
from regard.inspection.adapters.mask_parser import parse_attention_mask, trim_unused_keys
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.adapters.transformers_attention import redirection
from regard.ops import attend
from regard.ops.attend.op import attend_as
from regard.ops.autocast import cast_to_autocast, is_autocast
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.masks import Causal
from regard.ops.terms import weights_from_scores


def intercept_torch(tracker: ModuleTracker) -> None:
    """Compute torch's attention functions with `attend` while the model runs, in any thread.

    The C++ fast path of nn.TransformerEncoder calls no attention function; torch does not take it
    while functions are overridden, so the layers run one by one. A model of regard's layers needs
    none of this, nor one of transformers whose attentions all use the AttentionInterface.
    """
    if _calls_torch(tracker.modules.values()):
        tracker.run_contexts.append(lambda: _override(_AttentionMode(tracker)))


@contextmanager
def _override(mode: TorchFunctionMode) -> Iterator[None]:
    """As `with mode`, but modes entered later may still be active at the end."""
    mode.__enter__()
    try:
        yield
    finally:
        above = []
        while (top := _pop_mode()) is not mode:
            above.append(top)
        for other in reversed(above):
            _push_mode(other)


def _calls_torch(modules: Iterable[nn.Module]) -> bool:
    """Whether one may call torch's attention functions, or some together write attention out."""
    used: set[str] = set()
    for module in modules:
        names = called_names(module)
        if names is None:
            known = type(module).__module__.startswith(("regard.", "torch.nn.modules."))
            if not known or isinstance(module, nn.MultiheadAttention):
                return True
        elif INTERFACE in names and redirection(module) is None:
            return True
        else:
            used |= names
    has_softmax = any("softmax" in name.lower() for name in used)
    return not used.isdisjoint(FUSED) or (has_softmax and not used.isdisjoint(PRODUCTS))


class _AttentionMode(TorchFunctionMode):
    def __init__(self, tracker: ModuleTracker):
        super().__init__()
        self.tracker = tracker
        self.eager = EagerTracer(tracker)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_attention = func is F.scaled_dot_product_attention
        # calls with nested or missing tensors stay with torch and count as skipped
        if is_attention and len(args) >= 3 and not any(x.is_nested for x in args[:3]):
            return self._attend(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head_attention(args, kwargs)
        return self.eager.run(func, args, kwargs)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """As F.scaled_dot_product_attention."""
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        model_out = _math_output(*given, scale=scale, enable_gqa=enable_gqa)
        front = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
        q, k, v = (_fold_batch(x, front) for x in (query, key, value))
        terms: dict[str, Any] = {"scale": scale, "dropout": dropout_p}
        if is_causal:
            terms["mask"] = Causal()
        elif attn_mask is not None:
            attn_mask = _fold_batch(attn_mask, front) if attn_mask.ndim > 3 else attn_mask
            same_sequence = self.tracker.caller.kind == "self"
            parsed = parse_attention_mask(attn_mask, q, k, same_sequence=same_sequence)
            k, v = (trim_unused_keys(x, parsed.used_keys) for x in (k, v))
            terms |= {"mask": parsed.mask, "bias": parsed.bias, "offset": parsed.offset}
        if model_out is None:
            out, _ = attend(q, k, v, **terms)
        else:
            out = attend_as(_fold_batch(model_out, front), q, k, v, **terms)
        return out.reshape(*front, *out.shape[-3:])

    def _multi_head_attention(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """As torch, but always fused; requested weights are recomputed from lse."""
        names = F.multi_head_attention_forward.__code__.co_varnames
        arguments: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        forward = _with_attention(self._attend)
        if not arguments.get("need_weights", True):
            return forward(**arguments)
        maps: list[Tensor] = []

        def record_map(call: AttentionCall, proceed: Proceed) -> AttentionResult:
            out, lse = proceed(call)
            maps.append(weights_from_scores(call.terms.score_tile(call.q, call.k), lse))
            return out, lse

        with intercepting(record_map):
            out, _ = forward(**{**arguments, "need_weights": False})
        w = maps[0].to(out.dtype)
        w = w.mean(1) if arguments.get("average_attn_weights", True) else w
        return out, w if arguments["query"].ndim == 3 else w[0]


def _with_attention(attend: Callable[..., Tensor]) -> Callable[..., Any]:
    """A copy of multi_head_attention_forward that calls `attend`.

    A mode is inactive inside its handler, so the function that torch looks up by name is
    replaced, in a copy: other threads use the original.
    """
    original = F.multi_head_attention_forward
    names = {**original.__globals__, "scaled_dot_product_attention": attend}
    copy = FunctionType(original.__code__, names, original.__name__, original.__defaults__)
    copy.__kwdefaults__ = original.__kwdefaults__
    names[original.__name__] = copy  # another active mode calls the function by this name
    return copy


def _math_output(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Tensor | None:
    """The output of torch's attention where it runs no fused kernel on a CPU; `attend` runs one."""
    if q.device.type != "cpu" or 0 in (*q.shape, *k.shape, *v.shape):
        return None
    cast = cast_to_autocast(q, k, v) if is_autocast(q) else (q, k, v)
    if torch.ops.aten._fused_sdp_choice.default(*cast, *args, **options) != SDPBackend.MATH.value:
        return None
    with torch._C.DisableTorchFunction():  # an outer look would record it too
        return F.scaled_dot_product_attention(q, k, v, *args, **options)


def _fold_batch(x: Tensor, front: torch.Size) -> Tensor:
    """Fold all axes before the heads into one batch axis."""
    x = x.expand(*front, *x.shape[-3:])
    return x.flatten(0, -4) if len(front) > 1 else x
