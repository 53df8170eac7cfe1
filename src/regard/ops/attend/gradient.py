"""The gradient of the log-sum-exp, which torch's fused kernels do not provide."""

from typing import Any

import torch
from torch import Tensor

from regard.ops.intercept import AttentionCall
from regard.ops.terms import weights_from_scores
from regard.ops.tiling import band_gradients, row_bands


def differentiable_lse(call: AttentionCall, lse: Tensor) -> Tensor:
    """Attach a gradient to lse: ∂lse_i/∂s_ij is the weight w_ij, recomputed band by band."""
    inputs = (call.q, call.k, *call.terms.trainable_tensors)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return lse
    return _LogSumExp.apply(call, lse, *inputs)


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: AttentionCall, lse: Tensor, *inputs: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(lse, *inputs)
        return lse.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        lse, *inputs = ctx.saved_tensors
        terms, keys = ctx.call.terms, ctx.call.k.shape[-2]

        def recompute(rows: range) -> tuple[list[Tensor], list[Tensor]]:
            band = slice(rows.start, rows.stop)
            scores = terms.score_tile(*inputs[:2], rows, terms.key_span(rows, keys))
            w = weights_from_scores(scores.detach(), lse[..., band])
            return [scores], [w * grad[..., band, None]]

        bands = row_bands(lse.shape[-1], lse.shape[:-1].numel() * keys)
        return None, None, *band_gradients(inputs, bands, recompute)
