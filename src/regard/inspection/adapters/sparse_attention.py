"""Blocked attention of Longformer and BigBird, as dense attention with the mask of its pattern.

These models compute a band or blocks of the map. The same queries, keys and values with a mask give
the same weights, so each module is one call at `ops.intercept`. The model's output is used
unless an edit changed the call.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.ops.attend.op import compute_attention, dispatch_output
from regard.ops.intercept import AttentionCall
from regard.ops.masks import DenseMask, Local
from regard.ops.terms import make_terms

TermsOf = Callable[..., dict[str, Any]]  # mask and bias, from a module, its arguments and output

_intercepted = WeakIdKeyDictionary()  # outputs of modules: several looks may hook the same module


def intercept_sparse(tracker: ModuleTracker) -> None:
    """Make an attention call of each forward pass of a known module until the tracker closes."""
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
