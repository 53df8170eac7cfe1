"""Attention a band of rows at a time: any terms, any dtype, memory that grows with n and not n²."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from regard.ops.attend import reference
from regard.ops.intercept import AttentionCall, AttentionResult

MAX_SCORES = 1 << 24  # scores held at a time, 64 MB of float32


def attend(call: AttentionCall) -> AttentionResult:
    """The reference, band by band; on the way back each band is recomputed."""
    keys, anew = call.k.shape[-2], torch.is_grad_enabled()
    answers = []
    for rows in row_bands(call.q.shape[-2], call.q.shape[:-2].numel() * keys):
        work = partial(reference.attend_rows, call, rows, call.terms.key_span(rows, keys))
        answers.append(checkpoint(work, use_reentrant=False) if anew else work())
    outs, lses = zip(*answers, strict=True)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def row_bands(queries: int, per_row: int, max_elements: int = MAX_SCORES) -> list[range]:
    """Cut the rows so that each band holds about `at_once` numbers.

    >>> row_bands(5, per_row=10, max_elements=20)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    height = max(1, min(queries, max_elements // max(1, per_row)))
    return [range(i, min(i + height, queries)) for i in range(0, max(1, queries), max(1, height))]
