"""Models of Hugging Face's transformers, led through the door by its attention interface."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from regard.errors import LookError
from regard.inspection.adapters.mask_parser import (
    ParsedMask,
    parse_attention_mask,
    trim_unused_keys,
)
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.ops import attend, attention_weights, biases
from regard.ops.autocast import cast_to_autocast, is_autocast
from regard.ops.masks import Causal

INTERFACE_NAME = "regard"


def intercept_transformers(tracker: ModuleTracker) -> None:
    """Answer the attention of the transformers models in a model by `attend`, then as before."""
    if "transformers" not in sys.modules:  # then none of its models can be here
        return
    _register()
    for config in _configs(tracker.modules.values()):
        _redirect(config)
        tracker.exit_stack.callback(_restore, config)


@dataclass
class _Redirected:
    """A config that names our attention, for how many looks, and what it named before."""

    config: Any
    before: str | None
    count: int = 0


_redirected: dict[int, _Redirected] = {}  # by the id of the config, which is held meanwhile
_redirecting = threading.RLock()


def _redirect(config: Any) -> None:
    with _redirecting:
        current = config._attn_implementation_internal
        known = _redirected.setdefault(id(config), _Redirected(config, current))
        known.count += 1
        if current != INTERFACE_NAME:
            known.before = current  # the caller may have changed it since the first look
            config._attn_implementation_internal = INTERFACE_NAME
        _redirected[id(config)] = known  # garbage collection may have ended the last look here


def _restore(config: Any) -> None:
    with _redirecting:
        known = _redirected[id(config)]
        known.count -= 1
        if known.count:
            return
        del _redirected[id(config)]
        if config._attn_implementation_internal == INTERFACE_NAME:
            config._attn_implementation_internal = known.before


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(INTERFACE_NAME, regard_attention_forward)
    # without this every mask is silently None, and padding is attended to
    AttentionMaskInterface.register(INTERFACE_NAME, sdpa_mask)


def _configs(modules: Iterable[nn.Module]) -> list[Any]:
    """Every config that says which attention runs, of models that go by the interface.

    A model with a softmax of its own also reads its config, for the form of the mask: it must keep
    what it has, or it would be given a mask that it cannot read.
    """
    from transformers import PreTrainedModel

    found: dict[int, Any] = {}
    for part in modules:
        if not isinstance(part, PreTrainedModel) or not part._can_set_attn_implementation():
            continue
        for module in _own_modules(part, PreTrainedModel):
            config = vars(module).get("config")  # getattr would search and fail 200 times over
            if id(config) not in found and hasattr(config, "_attn_implementation_internal"):
                found[id(config)] = config
    return list(found.values())


def _own_modules(part: nn.Module, kind: type) -> Iterator[nn.Module]:
    """A model and its modules, but not the models within it."""
    todo = [part]
    while todo:
        module = todo.pop()
        yield module
        todo += [m for m in module._modules.values() if m is not None and not isinstance(m, kind)]


def _undisturbed(work: Callable[..., Any]) -> Callable[..., Any]:
    """Without the mode that leads torch's own attention here: it is asked for every shape read."""

    @wraps(work)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return work(*args, **kwargs)

    return alone


@_undisturbed
def regard_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls for every attention; the answer is (batch, query, head, value)."""
    _refuse(module, others)
    is_causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    queries, keys = query.shape[2], key.shape[2]
    found = ParsedMask()
    if attention_mask is not None:
        found = _read_once(attention_mask, query, key, is_causal, sliding_window)
        key, value = (
            trim_unused_keys(key, found.used_keys),
            trim_unused_keys(value, found.used_keys),
        )
    elif is_causal and queries > 1:
        # a static cache is longer than what is in it; what is behind the queries is empty
        key, value = trim_unused_keys(key, queries), trim_unused_keys(value, queries)
        found = ParsedMask(Causal())
    elif is_causal:
        found = ParsedMask(offset=keys - queries)
    bias = found.bias
    if position_bias is not None:
        place = biases.DenseBias(position_bias[..., : key.shape[2]])
        bias = place if bias is None else bias + place
    terms: dict[str, Any] = {"mask": found.mask, "bias": bias, "scale": scaling, "softcap": softcap}
    terms |= {"sinks": s_aux, "offset": found.offset}
    if is_autocast(query):
        query, key, value = cast_to_autocast(query, key, value)
    out, _ = attend(query, key, value, dropout=dropout, **terms)
    # who asks for maps gets them, also where transformers itself would return none in silence
    maps = attention_weights(query, key, **terms) if others.get("output_attentions") else None
    return out.transpose(1, 2).contiguous(), maps


_read = WeakIdKeyDictionary()


def _read_once(given: Tensor, q: Tensor, k: Tensor, same: bool, window: int | None) -> ParsedMask:
    """All layers share a mask, so its structure is found once."""
    version = 0 if given.is_inference() else given._version
    asked = (version, tuple(q.shape), tuple(k.shape), same, window)
    known = _read.get(given)
    if known is None or known[0] != asked:
        known = (asked, parse_attention_mask(given, q, k, same_sequence=same, window=window))
        _read[given] = known
    return known[1]


def _refuse(module: nn.Module, others: dict[str, Any]) -> None:
    for name in ("head_mask", "indices", "block_indices", "cache"):
        if others.get(name) is not None:
            raise LookError(
                f"model: needs attention without {name} to be seen, got it in "
                f"{type(module).__name__}; try a run without it"
            )
