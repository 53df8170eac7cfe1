"""The gradient of the log-sum-exp, which torch's fused kernels do not give."""

from typing import Any

import torch
from torch import Tensor

from regard.ops.attend.tiled import row_bands
from regard.ops.intercept import AttentionCall


def differentiable_lse(call: AttentionCall, lse: Tensor) -> Tensor:
    """The same lse, now differentiable: ∂lse_i/∂s_ij is the weight w_ij, streamed over bands."""
    wanted = (call.q, call.k, *call.terms.trainable_tensors)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in wanted)):
        return lse
    return _Lse.apply(call, lse, *wanted)


class _Lse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: AttentionCall, lse: Tensor, *wanted: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(lse, *wanted)
        return lse.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        lse, *wanted = ctx.saved_tensors
        terms, keys = ctx.call.terms, ctx.call.k.shape[-2]
        total = [torch.zeros_like(x) if x.requires_grad else None for x in wanted]
        for rows in row_bands(lse.shape[-1], lse.shape[:-1].numel() * keys):
            with torch.enable_grad():
                q, k = wanted[:2]
                scores = terms.score_tile(q, k, rows, terms.key_span(rows, keys))
            part = slice(rows.start, rows.stop)
            known = torch.where(lse[..., part] == -torch.inf, 0, lse[..., part])
            w = torch.exp(scores.detach() - known[..., None])
            asked = [x for x in wanted if x.requires_grad]
            parts = torch.autograd.grad(scores, asked, w * grad[..., part, None], allow_unused=True)
            for sum_, add in zip([t for t in total if t is not None], parts, strict=True):
                if add is not None:
                    sum_ += add
        return None, None, *total
