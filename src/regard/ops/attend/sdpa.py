"""Attention output by `F.scaled_dot_product_attention`, without a log-sum-exp: for training."""

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.masks import Causal, Mask, Padding, length_mask
from regard.ops.terms import TermOptions


def can_use_sdpa(q: Tensor, k: Tensor, terms: TermOptions) -> bool:
    """Whether SDPA computes these terms: on a GPU, a causal or padding mask, nothing else."""
    if not q.is_cuda or q.ndim != 4:
        return False
    if any(terms.get(name) is not None for name in ("bias", "softcap", "sinks", "score")):
        return False
    mask, scale = terms.get("mask"), terms.get("scale")
    if isinstance(mask, Tensor) or (scale is not None and scale <= 0):  # 0 · -inf is NaN
        return False
    return is_sdpa_mask(mask, square=not terms.get("offset") and q.shape[-2] == k.shape[-2])


def is_sdpa_mask(mask: Mask | None, *, square: bool) -> bool:
    """Whether SDPA takes a mask as `is_causal`, or as one row of keys per sequence.

    >>> is_sdpa_mask(rg.Causal(), square=True), is_sdpa_mask(rg.ops.masks.Local(1), square=True)
    (True, False)
    """
    return mask is None or all(
        part.left_padding is None and part.lengths.ndim == 1
        if isinstance(part, Padding)
        else isinstance(part, Causal) and square
        for part in mask.parts
    )


def attend_by_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float | None, dropout: float
) -> Tensor:
    """The output of attention; zeros for a sequence of length 0, as in `attend`."""
    parts, grouped = mask.parts if mask is not None else [], q.shape[1] != k.shape[1]
    causal = any(isinstance(part, Causal) for part in parts)
    all_lengths = [part.lengths for part in parts if isinstance(part, Padding)]
    if not all_lengths:
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
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return torch.where(nonempty, out, 0.0)  # one pass; masked_fill takes two and a copy
