"""Attention in bands of rows: any terms, any dtype, memory linear in the sequence length."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from regard.ops.attend import reference
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.ops.tiling import row_bands


def attend(call: AttentionCall) -> AttentionResult:
    """The reference, band by band; the backward pass recomputes each band."""
    keys, needs_grad = call.k.shape[-2], torch.is_grad_enabled()
    results = []
    for rows in row_bands(call.q.shape[-2], call.q.shape[:-2].numel() * keys):
        compute = partial(reference.attend_rows, call, rows, call.terms.key_span(rows, keys))
        results.append(checkpoint(compute, use_reentrant=False) if needs_grad else compute())
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)
