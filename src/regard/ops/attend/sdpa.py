"""Attention output by `F.scaled_dot_product_attention`, without a log-sum-exp: for training."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.masks import Both, Causal, Mask, Padding, length_mask
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
    if isinstance(mask, Both):
        return is_sdpa_mask(mask.a, square=square) and is_sdpa_mask(mask.b, square=square)
    if isinstance(mask, Padding):
        return mask.left_padding is None and mask.lengths.ndim == 1
    return mask is None or (isinstance(mask, Causal) and square)


def attend_by_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float | None, dropout: float
) -> Tensor:
    """The output of attention; zeros for a sequence of length 0, as in `attend`."""
    causal, lengths = _causal_and_lengths(mask)
    grouped = q.shape[1] != k.shape[1]
    if lengths is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
        )
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


def _causal_and_lengths(mask: Mask | None) -> tuple[bool, Tensor | None]:
    if isinstance(mask, Both):
        (causal_a, a), (causal_b, b) = _causal_and_lengths(mask.a), _causal_and_lengths(mask.b)
        lengths = a if b is None else b if a is None else torch.minimum(a, b)
        return causal_a or causal_b, lengths
    return isinstance(mask, Causal), mask.lengths if isinstance(mask, Padding) else None
