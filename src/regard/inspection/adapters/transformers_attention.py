"""Routes Hugging Face transformers models through `ops.attend`, by their AttentionInterface."""

import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    """Compute the attention of transformers models with `attend` until the tracker closes."""
    if "transformers" not in sys.modules:  # then the model has none of its modules
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(INTERFACE_NAME, regard_attention_forward)
    # without a mask function every mask is silently None, and padding is attended to
    AttentionMaskInterface.register(INTERFACE_NAME, sdpa_mask)
    for config in _configs(tracker.modules.values()):
        _redirect(config)
        tracker.exit_stack.callback(_restore, config)


@dataclass
class _Redirected:
    """A config that selects our attention, the number of users, and its previous setting."""

    config: Any
    previous: str | None
    count: int = 0


_redirected: dict[int, _Redirected] = {}  # by id of the config, which stays referenced
_redirecting = threading.RLock()


def _redirect(config: Any) -> None:
    with _redirecting:
        current = config._attn_implementation_internal
        entry = _redirected.setdefault(id(config), _Redirected(config, current))
        entry.count += 1
        if current != INTERFACE_NAME:
            entry.previous = current  # the caller may have changed it since the first look
            config._attn_implementation_internal = INTERFACE_NAME
        _redirected[id(config)] = entry  # garbage collection may just have ended the last look


def _restore(config: Any) -> None:
    with _redirecting:
        entry = _redirected[id(config)]
        entry.count -= 1
        if entry.count:
            return
        del _redirected[id(config)]
        if config._attn_implementation_internal == INTERFACE_NAME:
            config._attn_implementation_internal = entry.previous


def _configs(modules: Iterable[nn.Module]) -> list[Any]:
    """Every config that selects the attention of a model that uses the AttentionInterface.

    Models with their own softmax read the same setting for the mask format: their configs stay
    unchanged, or they would get a mask that they cannot use.
    """
    from transformers import PreTrainedModel

    configs: dict[int, Any] = {}
    for part in modules:
        if isinstance(part, PreTrainedModel) and part._can_set_attn_implementation():
            for module in _own_modules(part, PreTrainedModel):
                config = vars(module).get("config")  # getattr on a Module is slow when it fails
                if id(config) not in configs and hasattr(config, "_attn_implementation_internal"):
                    configs[id(config)] = config
    return list(configs.values())


def _own_modules(part: nn.Module, kind: type) -> Iterator[nn.Module]:
    """A model and its modules, without those of nested models."""
    todo = [part]
    while todo:
        module = todo.pop()
        yield module
        todo += [m for m in module._modules.values() if m is not None and not isinstance(m, kind)]


def regard_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls; returns (batch, query, head, value)."""
    with torch._C.DisableTorchFunction():  # our mode would be called for every shape that is read
        return _attention_forward(*args, **kwargs)


def _attention_forward(
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
    for name in ("head_mask", "indices", "block_indices", "cache"):
        if others.get(name) is not None:
            raise LookError(
                f"model: needs attention without {name} to be recorded, got it in "
                f"{type(module).__name__}; try a run without it"
            )
    is_causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is not None:
        parsed = _parse_cached(attention_mask, query, key, is_causal, sliding_window)
    elif is_causal and queries > 1:
        # a static cache has more capacity than content; nothing lies behind the queries
        parsed = ParsedMask(Causal(), used_keys=queries)
    else:
        parsed = ParsedMask(offset=keys - queries if is_causal else 0)
    key, value = (trim_unused_keys(x, parsed.used_keys) for x in (key, value))
    bias = parsed.bias
    if position_bias is not None:
        added = biases.DenseBias(position_bias[..., : key.shape[2]])
        bias = added if bias is None else bias + added
    terms: dict[str, Any] = {"mask": parsed.mask, "bias": bias, "offset": parsed.offset}
    terms |= {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    if is_autocast(query):
        query, key, value = cast_to_autocast(query, key, value)
    out, _ = attend(query, key, value, dropout=dropout, **terms)
    # requested maps are returned, also where transformers with sdpa silently returns none
    maps = attention_weights(query, key, **terms) if others.get("output_attentions") else None
    return out.transpose(1, 2).contiguous(), maps


_parsed_masks = WeakIdKeyDictionary()


def _parse_cached(
    mask: Tensor, q: Tensor, k: Tensor, same_sequence: bool, window: int | None
) -> ParsedMask:
    """Parse a mask once: all layers share it."""
    version = 0 if mask.is_inference() else mask._version
    key = (version, tuple(q.shape), tuple(k.shape), same_sequence, window)
    entry = _parsed_masks.get(mask)
    if entry is None or entry[0] != key:
        parsed = parse_attention_mask(mask, q, k, same_sequence=same_sequence, window=window)
        entry = _parsed_masks[mask] = (key, parsed)
    return entry[1]
