"""Attention by torch's fused kernels that also return the log-sum-exp, on the CPU and on CUDA."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.ops.attend.gradient import differentiable_lse
from regard.ops.attend.tiled import row_bands
from regard.ops.grid import to_4d
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.masks import Causal
from regard.ops.terms import repeat_kv

MAX_MASK_ELEMENTS = 1 << 25  # numbers of an explicit mask held at a time, 128 MB of float32


def refusal(call: AttentionCall) -> str | None:
    """Why this call cannot be fused; None when it can."""
    q, k, v, terms = call.q, call.k, call.v, call.terms
    if terms.score is not None:
        return "fused kernels know only the dot product"
    if terms.softcap is not None:
        return "torch's fused kernels have no softcap"
    if not (q.dtype == k.dtype == v.dtype):
        return f"q, k, v need one dtype, got {q.dtype}, {k.dtype}, {v.dtype}"
    if 0 in (*q.shape, *k.shape, *v.shape):
        return "fused kernels need at least one of everything"
    if q.is_cuda:
        return _refusal_on_cuda(call)
    if q.device.type != "cpu":
        return f"no fused kernel returns a log-sum-exp on {q.device.type}"
    if call.dropout:
        return "the CPU kernel has no dropout"
    if terms.trainable_tensors or _asks_query(call):
        return "the CPU kernel gives no gradient to a bias"
    return None


def attend(call: AttentionCall) -> AttentionResult:
    """softmax(scores) v and its log-sum-exp, without the map."""
    batch, value = call.q.shape[:-2], call.v.shape[-1]
    q, k, v = _same_width(*(_adjacent(to_4d(x)) for x in (call.q, call.k, call.v)))
    out, lse = _attend(call, q, k, v)
    out, lse = out[..., :value].reshape(*batch, -1, value), lse.reshape(*batch, -1)
    lse = differentiable_lse(call, lse)
    if call.terms.sinks is None:
        return out, lse
    total = call.terms.with_sinks(lse)  # sinks only dilute what the others gave
    return (out * torch.exp(lse - total)[..., None]).to(out.dtype), total


def _attend(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> AttentionResult:
    terms, kernel = call.terms, _on_cuda if q.is_cuda else _on_cpu
    if terms.bias is None and (terms.mask is None or _covers_all(call)):
        return kernel(call, q, k, v, causal=False)
    if terms.bias is None and _square_causal(call):
        return kernel(call, q, k, v, causal=True)
    # Anything else goes in as an explicit mask, a band of rows and the keys it can see at a time.
    answers = []
    for rows in row_bands(q.shape[-2], call.q.shape[:-2].numel() * k.shape[-2], MAX_MASK_ELEMENTS):
        keys = terms.key_span(rows, k.shape[-2]) or range(1)
        added, empty = _added(call, rows, keys)
        part = slice(keys.start, keys.stop)
        out, lse = kernel(
            call,
            q[:, :, rows.start : rows.stop],
            k[:, :, part],
            v[:, :, part],
            causal=False,
            added=_like_q(added, call),
        )
        empty = _like_q(empty[..., None], call)
        lse = lse.masked_fill(empty[..., 0], -torch.inf)
        answers.append((out.masked_fill(empty, 0), lse))
    outs, lses = zip(*answers, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def _added(call: AttentionCall, rows: range, keys: range) -> tuple[Tensor, Tensor]:
    """What is added to each score, and which rows see nothing (those are opened, then emptied)."""
    grid, terms = call.terms.grid(call.q, call.k, rows, keys), call.terms
    like = torch.float32 if call.q.dtype != torch.float64 else torch.float64
    added = torch.zeros((len(rows), len(keys)), dtype=like, device=call.q.device)
    if terms.bias is not None:
        added = added + terms.bias.tile(grid, call.q[..., rows.start : rows.stop, :], terms.scale)
    if terms.mask is None:
        return added.to(call.q.dtype), added.new_zeros(len(rows), dtype=torch.bool)
    allowed = terms.mask.tile(grid)
    empty = ~allowed.any(-1)
    added = added.masked_fill(~(allowed | empty[..., None]), -torch.inf)
    return added.to(call.q.dtype), empty.expand(*empty.shape[:-1], len(rows))


def _like_q(x: Tensor, call: AttentionCall) -> Tensor:
    """Four axes, as q has them: leading axes that are to be joined must all be there first."""
    return to_4d(x.expand(*call.q.shape[:-2], *x.shape[-2:]) if call.q.ndim > 4 else x)


def _on_cpu(
    call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, causal: bool, added: Tensor | None = None
) -> AttentionResult:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=added, scale=call.terms.scale
    )
    # This kernel answers a query with a NaN in it with zeros; show the NaN instead.
    hurt = q.sum(-1).isnan()
    return out.masked_fill(hurt[..., None], torch.nan), lse.masked_fill(hurt, torch.nan)


def _refusal_on_cuda(call: AttentionCall) -> str | None:
    if call.q.dtype == torch.float64:
        return "CUDA's fused kernels have no float64"
    if max(call.q.shape[-1], call.v.shape[-1]) > 256:
        return "CUDA's fused kernels need head_dim of at most 256"
    return None


def _on_cuda(
    call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, causal: bool, added: Tensor | None = None
) -> AttentionResult:
    scale, half = call.terms.scale, q.dtype in (torch.float16, torch.bfloat16)
    if added is None and half:
        q, k, v, value = *_to_eights(q, k, v), v.shape[-1]
        if _takes_cudnn(q, k, v, call.dropout, causal, scale):
            out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
                q, k, v, None, True, call.dropout, causal, scale=scale
            )
            return out[..., :value], lse.reshape(lse.shape[:3])
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, call.dropout, causal, scale=scale
        )
        return out[..., :value], lse
    k, v = repeat_kv(k, q), repeat_kv(v, q)
    queries, keys = q.shape[-2], k.shape[-2]
    if added is not None:  # this kernel wants whole rows of 16 bytes
        added = F.pad(added, (0, -keys % 16))[..., :keys].expand(*q.shape[:2], queries, keys)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *_to_eights(q, k, v), added, True, call.dropout, causal, scale=scale
    )
    return out[..., : v.shape[-1]], lse[..., :queries]


def _takes_cudnn(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, scale: float
) -> bool:
    """Whether torch itself would give this call to cuDNN: then a look changes no bit of a model."""
    grouped = q.shape[1] != k.shape[1]
    chosen = torch.ops.aten._fused_sdp_choice.default(
        q, k, v, None, dropout, causal, scale=scale, enable_gqa=grouped
    )
    return chosen == SDPBackend.CUDNN_ATTENTION.value


def _asks_query(call: AttentionCall) -> bool:
    bias, q = call.terms.bias, call.q
    return (
        bias is not None and bias.depends_on_query and q.requires_grad and torch.is_grad_enabled()
    )


def _square_causal(call: AttentionCall) -> bool:
    return (
        call.terms.scale > 0  # these kernels scale after masking, and 0 · -inf is no number
        and call.terms.mask == Causal()
        and call.terms.offset == 0
        and call.q.shape[-2] == call.k.shape[-2]
    )


def _covers_all(call: AttentionCall) -> bool:
    mask, queries = call.terms.mask, call.q.shape[-2]
    places = range(call.terms.offset, call.terms.offset + queries)
    return mask is not None and mask.is_full(places, range(call.k.shape[-2]))


def _same_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros behind the features change no score, and behind the values no output."""
    head_dim, value = q.shape[-1], v.shape[-1]
    wide = max(head_dim, value)
    q, k = (F.pad(x, (0, wide - head_dim)) if wide > head_dim else x for x in (q, k))
    return q, k, F.pad(v, (0, wide - value)) if wide > value else v


def _adjacent(x: Tensor) -> Tensor:
    """These kernels read a token's features side by side, whatever its strides say."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _to_eights(*xs: Tensor) -> list[Tensor]:
    return [F.pad(x, (0, -x.shape[-1] % 8)) for x in xs]
