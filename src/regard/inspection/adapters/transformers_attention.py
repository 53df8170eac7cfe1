"""Routes Hugging Face transformers models through `ops.attend`, by their AttentionInterface."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from regard.errors import LookError
from regard.inspection.adapters.mask_parser import (
    HIDDEN_SCORE,
    ParsedMask,
    chosen_keys,
    hide_others,
    parse_attention_mask,
    trim_unused_keys,
)
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.ops import attend, attention_weights, biases
from regard.ops.attend.op import attend_as
from regard.ops.autocast import cast_to_autocast, is_autocast
from regard.ops.intercept import is_intercepted
from regard.ops.masks import Causal, ChosenKeys

INTERFACE_NAME = "regard"
# tensors that models pass on: the first are read neither by eager attention nor by SDPA
KNOWN_TENSORS = frozenset(
    ("cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "num_items_in_batch", "position_ids")
)
KNOWN_TENSORS |= {"s_aux", "position_bias"}


def intercept_transformers(tracker: ModuleTracker) -> None:
    """Compute the attention of transformers models with `attend` until the tracker closes."""
    if "transformers" not in sys.modules:  # then the model has none of its modules
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(INTERFACE_NAME, regard_attention_forward)
    # without a mask function every mask is silently None, and padding is attended to
    AttentionMaskInterface.register(INTERFACE_NAME, _make_mask)
    for config, needs_eager_mask in _configs(tracker.modules.values()):
        _redirect(config, needs_eager_mask)
        tracker.exit_stack.callback(_restore, config)


def _make_mask(*args: Any, config: Any = None, **kwargs: Any) -> Tensor | None:
    """The mask of a redirected model: boolean, or None if causal, unless it needs an eager one."""
    from transformers.masking_utils import eager_mask, sdpa_mask

    entry = _redirected.get(id(config))
    make = eager_mask if entry is not None and entry.needs_eager_mask else sdpa_mask
    return make(*args, config=config, **kwargs)


@dataclass
class _Redirected:
    """A config that selects our attention, the number of users, and its previous setting."""

    config: Any
    previous: str | None
    needs_eager_mask: bool
    count: int = 0


class _Setting(str):
    """The setting that selects our attention; a copy of the config gets the previous one."""

    previous: str | None

    def __deepcopy__(self, memo: dict[int, Any]) -> str | None:
        return self.previous


_redirected: dict[int, _Redirected] = {}  # by id of the config, which stays referenced
_redirecting = threading.RLock()


def _redirect(config: Any, needs_eager_mask: bool) -> None:
    with _redirecting:
        current = config._attn_implementation_internal
        new = _Redirected(config, current, needs_eager_mask)
        entry = _redirected.setdefault(id(config), new)
        entry.count += 1
        if current != INTERFACE_NAME:
            entry.previous = current  # the caller may have changed it since the first look
            setting = _Setting(INTERFACE_NAME)
            setting.previous = current
            config._attn_implementation_internal = setting
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


def redirection(module: nn.Module) -> _Redirected | None:
    """How the config of a module selects our attention; None if it does not."""
    return _redirected.get(id(vars(module).get("config")))


def _configs(modules: Iterable[nn.Module]) -> list[tuple[Any, bool]]:
    """Every config that selects the attention of a model that uses the AttentionInterface.

    Models that write out the softmax read the same setting for the mask format: their configs stay
    unchanged. A model that has both kinds of attention needs masks that can be added to scores. So
    does one that never runs SDPA: its `is_causal` may not say what its mask does.
    """
    from transformers import PreTrainedModel

    configs: dict[int, tuple[Any, bool]] = {}
    for part in modules:
        if isinstance(part, PreTrainedModel) and part._can_set_attn_implementation():
            inside = [*_modules_of(part, PreTrainedModel)]
            eager = any(_writes_softmax(kind) for kind in {type(module) for module in inside}) or (
                not getattr(part, "_supports_sdpa", True)
                and any(vars(module).get("is_causal") is False for module in inside)
            )
            # most modules share one; reading an attribute of a config or a Module is slow
            shared = {id(x): x for m in inside if (x := vars(m).get("config")) is not None}
            for config in shared.values():
                if hasattr(config, "_attn_implementation_internal"):
                    known = configs.get(id(config), (config, False))
                    is_eager = config._attn_implementation_internal == "eager"
                    configs[id(config)] = config, known[1] or eager or is_eager
    return list(configs.values())


@cache
def _writes_softmax(kind: type) -> bool:
    """Whether the source of an attention class has a softmax, and does not use the interface."""
    if "ttention" not in kind.__name__ or not kind.__module__.startswith("transformers."):
        return False
    source = inspect.getsource(kind)
    return "softmax" in source and "ALL_ATTENTION_FUNCTIONS" not in source


def _modules_of(part: nn.Module, kind: type) -> Iterator[nn.Module]:
    """A model and its modules, without those of nested models."""
    todo = [part]
    while todo:
        module = todo.pop()
        yield module
        todo += [m for m in module._modules.values() if m is not None and not isinstance(m, kind)]


def regard_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls; returns (batch, query, head, value)."""
    with torch._C.DisableTorchFunction():  # our mode would be called for every shape that is read
        if attention_mask is not None and attention_mask.is_floating_point():
            entry = redirection(module)
            if entry and entry.previous == "sdpa" and _checks_for_sdpa(type(module)):
                attention_mask = attention_mask > HIDDEN_SCORE
        chosen = chosen_keys(module, kwargs, key.shape[2])
        model_mask = hide_others(attention_mask, chosen, query)
        compute, tensors = _model_function(module), (query, key, value)
        # a tensor that we do not know may be part of the scores: other sinks, a head mask
        unknown = next(
            (
                name
                for name, x in kwargs.items()
                if isinstance(x, Tensor) and name not in KNOWN_TENSORS
            ),
            "cache" if kwargs.get("cache") is not None else None,
        )
        if unknown is not None:
            unrecorded[module] = f"{type(module).__name__} has {unknown}, which no site can have"
            if compute is None:
                raise LookError(
                    f"model: needs attention without {unknown} to be recorded, got it in "
                    f"{type(module).__name__}; try a run without it"
                )
            return compute(module, *tensors, model_mask, **kwargs)
        if is_intercepted():
            if _ignores_terms(module):
                kwargs = {n: x for n, x in kwargs.items() if n not in ("softcap", "s_aux")}
            out = None
            given = (*tensors, model_mask, kwargs.get("position_bias"))
            if compute is not None and not _is_same_to_the_bit(compute, module, *given):
                out = compute(module, *tensors, model_mask, **kwargs)[0].transpose(1, 2)
            # eager attention makes no mask itself
            makes_mask = out is None or compute is not _eager_function(type(module))
            kwargs |= {"model_out": out, "chosen": chosen, "makes_mask": makes_mask}
            return _attention_forward(module, *tensors, attention_mask, **kwargs)
        # SDPA returns no maps
        if compute is None or kwargs.get("output_attentions"):
            return _attention_forward(module, *tensors, attention_mask, chosen=chosen, **kwargs)
        return compute(module, *tensors, model_mask, **kwargs)


unrecorded = WeakIdKeyDictionary()  # why attention modules did not reach `attend`


def _model_function(module: nn.Module) -> Callable[..., Any] | None:
    """What the setting of the model stands for, if the mask has its format: SDPA or eager."""
    from transformers import AttentionInterface

    entry = redirection(module)
    if entry is None:
        return None
    if entry.previous == "eager":
        return _eager_function(type(module))
    is_sdpa = entry.previous == "sdpa" and not entry.needs_eager_mask
    return AttentionInterface()["sdpa"] if is_sdpa else None


def _ignores_terms(module: nn.Module) -> bool:
    """Whether it runs SDPA of transformers 4, which reads no softcap and no sinks; 5 refuses them.

    Gemma 2 runs without its softcap there, so the map is recorded without it.
    """
    from transformers import __version__

    entry = redirection(module)
    return entry is not None and entry.previous == "sdpa" and __version__ < "5"


@cache
def _checks_for_sdpa(kind: type) -> bool:
    """Whether an attention class itself makes a boolean mask for SDPA, and one to add for others.

    A row that hides all keys is zero with the former, and a mean of the values with the latter.
    """
    is_known = kind.__module__.startswith("transformers.")
    return is_known and '_attn_implementation == "sdpa"' in inspect.getsource(kind)


@cache
def _eager_function(kind: type) -> Callable[..., Any] | None:
    """The eager function that a class of transformers passes to the interface."""
    forward = inspect.unwrap(getattr(kind, "forward"))  # noqa: B009
    names = [x for x in forward.__code__.co_names if x.endswith("eager_attention_forward")]
    return forward.__globals__.get(names[0]) if names else None


def _is_same_to_the_bit(
    compute: Callable[..., Any], module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, bias: Tensor | None,
) -> bool:  # fmt: skip
    """Whether `attend` returns the output of the model's function to the bit.

    That is where SDPA runs with values as wide as queries (DeepSeek's are not, and torch has no
    fused kernel for them), unless a row of a mask that is added to the scores hides all keys, as
    SDPA's is beside a bias.
    """
    if compute is _eager_function(type(module)) or query.shape[-1] != value.shape[-1]:
        return False
    if mask is not None and mask.dtype == torch.bool and bias is not None:
        return bool(mask.any(-1).all())
    return mask is None or not mask.is_floating_point() or not (mask <= HIDDEN_SCORE).all(-1).any()


def _attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, is_causal: bool | None = None,
    sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
    position_bias: Tensor | None = None, model_out: Tensor | None = None,
    chosen: Tensor | None = None, makes_mask: bool = True, **others: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    is_causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is not None:
        parsed = _parse_cached(attention_mask, query, key, is_causal, sliding_window)
    elif is_causal and queries > 1 and makes_mask:
        # a static cache has more capacity than content; nothing lies behind the queries
        parsed = ParsedMask(Causal(), used_keys=queries)
    else:
        parsed = ParsedMask(offset=keys - queries if is_causal else 0)
    key, value = (trim_unused_keys(x, parsed.used_keys) for x in (key, value))
    bias = parsed.bias
    if position_bias is not None:
        added = biases.DenseBias(position_bias[..., : key.shape[2]])
        bias = added if bias is None else bias + added
    mask = parsed.mask
    if chosen is not None:
        indexed = ChosenKeys(chosen[..., : key.shape[2]])
        mask = indexed if mask is None else mask & indexed
    terms: dict[str, Any] = {"mask": mask, "bias": bias, "offset": parsed.offset}
    terms |= {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    if is_autocast(query):
        query, key, value = cast_to_autocast(query, key, value)
    if model_out is None:
        out, _ = attend(query, key, value, dropout=dropout, **terms)
    else:
        out = attend_as(model_out, query, key, value, dropout=dropout, **terms)
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
    entry, given = _parsed_masks.get(mask), mask
    if entry is None or entry[0] != key:
        if mask.is_floating_point():  # eager masks add the lowest float
            mask = mask.masked_fill(mask <= HIDDEN_SCORE, -torch.inf)
        parsed = parse_attention_mask(mask, q, k, same_sequence=same_sequence, window=window)
        entry = _parsed_masks[given] = (key, parsed)
    return entry[1]
