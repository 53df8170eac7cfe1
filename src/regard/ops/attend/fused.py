"""Attention by torch's fused kernels: with the log-sum-exp, and by SDPA without, for training."""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.ops.autocast import is_autocast
from regard.ops.grid import to_4d
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.masks import Causal, Mask, Padding, length_mask
from regard.ops.terms import TermOptions, repeat_kv, weights_from_scores
from regard.ops.tiling import attach_gradients, row_bands

SDPA_TERMS = ("mask", "scale", "offset")
MAX_FLASH_WIDTH = 256  # of CUDA's flash and cuDNN kernels; the memory-efficient one takes any
MAX_MASK_ELEMENTS = 1 << 25  # of an explicit mask at a time, 128 MB of float32


def refusal(call: AttentionCall) -> str | None:
    """Why the fused kernels cannot compute this call; None if they can."""
    q, k, v, terms = call.q, call.k, call.v, call.terms
    if terms.score is not None:
        return "fused kernels compute only the dot product"
    if terms.softcap is not None:
        return "torch's fused kernels have no softcap"
    if not (q.dtype == k.dtype == v.dtype):
        return f"q, k, v need one dtype, got {q.dtype}, {k.dtype}, {v.dtype}"
    if 0 in (*q.shape, *k.shape, *v.shape):
        return "fused kernels need sizes of 1 or more"
    if q.is_cuda and q.dtype == torch.float64:
        return "CUDA's fused kernels have no float64"
    if q.is_cuda:
        return None
    if q.device.type != "cpu":
        return f"no fused kernel returns a log-sum-exp on {q.device.type}"
    if call.dropout:
        return "the CPU kernel has no dropout"
    reaches_q = terms.bias is not None and terms.bias.depends_on_query and q.requires_grad
    if terms.trainable_tensors or (reaches_q and torch.is_grad_enabled()):
        return "the CPU kernel gives no gradient to a bias"
    return None


def attend(call: AttentionCall) -> AttentionResult:
    """softmax(scores) v and its log-sum-exp, without storing the map."""
    batch, value = call.q.shape[:-2], call.v.shape[-1]
    wide = max(call.q.shape[-1], value)
    q, k, v = (_pad_to_width(to_4d(x), wide) for x in (call.q, call.k, call.v))
    kernel, causal = _on_cuda if q.is_cuda else _on_cpu, _kernel_mask(call)
    options = call.terms.scale, call.dropout
    if causal is not None:
        out, lse = kernel(q, k, v, causal, *options)
    else:  # an explicit additive mask, one band of rows at a time
        bands = row_bands(q.shape[-2], call.q.shape[:-2].numel() * k.shape[-2], MAX_MASK_ELEMENTS)
        results = []
        for rows in bands:
            keys = call.terms.key_span(rows, k.shape[-2]) or range(1)
            mask, empty = _additive_mask(call, rows, keys)
            part, queries = slice(keys.start, keys.stop), q[:, :, rows.start : rows.stop]
            mask, empty = _like_q(mask, call), _like_q(empty[..., None], call)
            out, lse = kernel(queries, k[:, :, part], v[:, :, part], False, *options, mask)
            lse = lse.masked_fill(empty[..., 0], -torch.inf)
            results.append((out.masked_fill(empty, 0), lse))
        outs, lses = zip(*results, strict=True)
        out, lse = torch.cat(outs, -2), torch.cat(lses, -1)
    out = _narrow(out, value)
    if len(batch) != 2:
        out, lse = out.reshape(*batch, -1, value), lse.reshape(*batch, -1)
    return call.terms.add_sinks(out, _differentiable_lse(call, lse))


def _kernel_mask(call: AttentionCall) -> bool | None:
    """Whether the kernel masks causally (True) or not at all; None if it needs a mask's values."""
    terms, queries, keys = call.terms, call.q.shape[-2], call.k.shape[-2]
    if terms.bias is not None:
        return None
    positions = range(terms.offset, terms.offset + queries)
    if terms.mask is None or terms.mask.is_full(positions, range(keys)):
        return False
    # these kernels scale after masking, and 0 · -inf is NaN
    square = terms.mask == Causal() and terms.offset == 0 and queries == keys
    return True if square and terms.scale > 0 else None


def _differentiable_lse(call: AttentionCall, lse: Tensor) -> Tensor:
    """Attach the gradient that torch's kernels omit: ∂lse_i/∂s_ij is the weight w_ij."""
    if not torch.is_grad_enabled():
        return lse
    terms, keys, lse = call.terms, call.k.shape[-2], lse.detach()

    def recompute(
        rows: range, inputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        q, k = inputs
        scores = terms.score_tile(q, k, rows, terms.key_span(rows, keys))
        w = weights_from_scores(scores.detach(), lse[..., rows.start : rows.stop])
        return [scores], [w * grads[0][..., rows.start : rows.stop, None]]

    bands = row_bands(lse.shape[-1], lse.shape[:-1].numel() * keys)
    return attach_gradients([lse], (call.q, call.k), terms.trainable_tensors, bands, recompute)[0]


def _additive_mask(call: AttentionCall, rows: range, keys: range) -> tuple[Tensor, Tensor]:
    """What is added to each score, and which rows have no visible key (emptied by the caller)."""
    grid, terms = call.terms.grid(call.q, call.k, rows, keys), call.terms
    dtype = torch.float32 if call.q.dtype != torch.float64 else torch.float64
    values = torch.zeros((len(rows), len(keys)), dtype=dtype, device=call.q.device)
    if terms.bias is not None:
        values = values + terms.bias.tile(grid, call.q[..., rows.start : rows.stop, :], terms.scale)
    if terms.mask is None:
        return values.to(call.q.dtype), values.new_zeros(len(rows), dtype=torch.bool)
    allowed = terms.mask.tile(grid)
    empty = ~allowed.any(-1)
    values = values.masked_fill(~(allowed | empty[..., None]), -torch.inf)
    return values.to(call.q.dtype), empty.expand(*empty.shape[:-1], len(rows))


def _like_q(x: Tensor, call: AttentionCall) -> Tensor:
    """Reshape to 4D like q; leading axes that are merged must be expanded first."""
    return to_4d(x.expand(*call.q.shape[:-2], *x.shape[-2:]) if call.q.ndim > 4 else x)


def _on_cpu(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, dropout: float = 0.0,
    mask_values: Tensor | None = None,
) -> AttentionResult:  # fmt: skip
    assert not dropout  # see `refusal`
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, 0.0, causal, attn_mask=mask_values, scale=scale
    )
    # This kernel returns zeros for a query that contains a NaN; return the NaN instead.
    has_nan = q.sum(-1).isnan()
    return out.masked_fill(has_nan[..., None], torch.nan), lse.masked_fill(has_nan, torch.nan)


def _on_cuda(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropout: float,
    mask_values: Tensor | None = None,
) -> AttentionResult:  # fmt: skip
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    if mask_values is None and is_half and q.shape[-1] <= MAX_FLASH_WIDTH:
        q, k, v, value = *_pad_to_multiple_of_8(q, k, v), v.shape[-1]
        # using cuDNN where SDPA would, recording changes no bit of a model
        choice = torch.ops.aten._fused_sdp_choice.default(
            q, k, v, None, dropout, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        if choice == SDPBackend.CUDNN_ATTENTION.value:
            out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
                q, k, v, None, True, dropout, causal, scale=scale
            )
            return _narrow(out, value), lse.reshape(lse.shape[:3])
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention.default(
            q, k, v, dropout, causal, scale=scale
        )
        return _narrow(out, value), lse
    k, v = repeat_kv(k, q), repeat_kv(v, q)
    queries, keys = q.shape[-2], k.shape[-2]
    if mask_values is not None:  # this kernel needs rows aligned to 16 elements
        mask_values = F.pad(mask_values, (0, -keys % 16))[..., :keys].expand(
            *q.shape[:2], queries, keys
        )
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
        *_pad_to_multiple_of_8(q, k, v), mask_values, True, dropout, causal, scale=scale
    )
    return _narrow(out, v.shape[-1]), _narrow(lse, queries)


def _pad_to_width(x: Tensor, width: int) -> Tensor:
    """Pad with zeros, which change no result; these kernels ignore the stride of the last axis."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _narrow(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else x[..., :width]


def _pad_to_multiple_of_8(*xs: Tensor) -> list[Tensor]:
    # F.pad would copy also where nothing is added
    return [F.pad(x, (0, -x.shape[-1] % 8)) if x.shape[-1] % 8 else x for x in xs]


def can_use_sdpa(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether SDPA takes these tensors, or on a CPU its kernel; `attend` names what is odd."""
    if q.is_cuda:
        return q.ndim == 4
    return (
        all(x.device.type == "cpu" and x.dtype == q.dtype and x.stride(-1) == 1 for x in (q, k, v))
        and k.shape == v.shape
        and q.ndim == k.ndim == 4
        and (len(q), q.shape[-1]) == (len(k), k.shape[-1])
        and 0 not in (*q.shape, *k.shape)
        and q.shape[1] % k.shape[1] == 0
        and dropout == 0
        and not is_autocast(q)
    )


def is_sdpa_mask(terms: TermOptions, *, square: bool, masks: int = 2) -> bool:
    """Whether all terms are `is_causal` of SDPA, or one row of keys per sequence.

    Args:
        terms: of the call.
        square: whether there are as many queries as keys.
        masks: the most that are combined; two need the values of a whole map.

    >>> is_sdpa_mask({"mask": rg.Causal()}, square=True)
    True
    >>> is_sdpa_mask({"mask": rg.ops.masks.Local(1)}, square=True)
    False
    """
    if any(x is not None and name not in SDPA_TERMS for name, x in terms.items()):
        return False
    mask, scale = terms.get("mask"), terms.get("scale")
    if isinstance(mask, Tensor) or (scale is not None and scale <= 0):  # 0 · -inf is NaN
        return False
    parts = [] if mask is None else mask.parts
    square = square and not terms.get("offset")
    return len(parts) <= masks and all(
        part.left_padding is None and part.lengths.ndim == 1
        if isinstance(part, Padding)
        else isinstance(part, Causal) and square
        for part in parts
    )


def attend_by_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float | None, dropout: float
) -> Tensor:
    """The output of attention; zeros for a sequence of length 0, as in `attend`."""
    parts, grouped = mask.parts if mask is not None else [], q.shape[1] != k.shape[1]
    causal = any(isinstance(part, Causal) for part in parts)
    all_lengths = [part.lengths for part in parts if isinstance(part, Padding)]
    if not all_lengths:
        if not q.is_cuda and not dropout:
            return _on_cpu(q, k, v, causal, scale)[0]
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
        )
    lengths = reduce(torch.minimum, all_lengths)
    if lengths.numel() != len(q):
        Padding(lengths).check(len(q), q.shape[-2], k.shape[-2])
    nonempty = (lengths > 0)[:, None, None, None]
    allowed = length_mask(lengths, k.shape[-2])[:, None, None] | ~nonempty
    if causal:
        positions = torch.arange(k.shape[-2], device=k.device)
        allowed = allowed & (positions <= positions[:, None])
    if not q.is_cuda and not dropout:
        values = torch.zeros(allowed.shape, dtype=q.dtype).masked_fill(~allowed, -torch.inf)
        out = _on_cpu(q, k, v, False, scale, 0.0, values)[0]
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, dropout_p=dropout, scale=scale, enable_gqa=grouped
        )
    return torch.where(nonempty, out, 0.0)  # one pass; masked_fill takes two and a copy
