"""Attention for training on a GPU: the output alone, by whichever kernel torch finds fastest."""

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attend.op import attend
from regard.ops.biases import Bias
from regard.ops.intercept import is_intercepted
from regard.ops.masks import Both, Causal, Mask, Padding


def attend_plainly(
    q: Float[Tensor, "*batch query head_dim"],
    k: Float[Tensor, "*keys_batch key head_dim"],
    v: Float[Tensor, "*keys_batch key value"],
    *,
    mask: Mask | Bool[Tensor, "... _ _"] | None = None,
    bias: Bias | Float[Tensor, "... _ _"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    offset: int = 0,
    dropout: float = 0.0,
) -> Float[Tensor, "*batch query value"]:
    """The output of `attend` without its log-sum-exp, which a layer that only trains has no use of.

    out_i = Σ_j exp(s_ij - lse_i) v_j

    On a GPU, with nobody at the door and no mask but a causal one or padding, torch's own choice of
    kernel takes the call; every other call is `attend`'s.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(4, 2), torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    >>> attend_plainly(q, k, v)
    tensor([[3.]])
    """
    unusual = bias is not None or softcap is not None or sinks is not None
    unusual = unusual or (scale is not None and scale <= 0)  # a scaled -inf may be no number
    square = offset == 0 and q.shape[-2] == k.shape[-2]
    simple = not isinstance(mask, Tensor) and is_sdpa_mask(mask, square=square)
    if simple and not unusual and q.is_cuda and q.ndim == 4 and not is_intercepted():
        return attend_by_sdpa(q, k, v, cast(Mask | None, mask), scale, dropout)
    out, _ = attend(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        offset=offset,
        dropout=dropout,
    )
    return out


def is_sdpa_mask(mask: Mask | None, *, square: bool) -> bool:
    """Whether a mask can be told to torch as a flag or one row of keys a sequence.

    >>> is_sdpa_mask(rg.Causal(), square=True), is_sdpa_mask(rg.masks.Local(1), square=True)
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
    """The same through torch's door; a sequence without a key gets zeros here too."""
    causal, lengths = _told(mask)
    grouped = q.shape[1] != k.shape[1]
    if lengths is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
        )
    if lengths.numel() != len(q):
        Padding(lengths).check(len(q), q.shape[-2], k.shape[-2])
    places = torch.arange(k.shape[-2], device=k.device)
    some = (lengths > 0)[:, None, None, None]
    allowed = (places < lengths[:, None])[:, None, None] | ~some
    if causal:
        allowed = allowed & (places <= places[:, None])
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return torch.where(some, out, 0.0)  # one pass, where a masked_fill takes two and a copy


def _told(mask: Mask | None) -> tuple[bool, Tensor | None]:
    """What a simple mask says: whether it is causal, and the lengths."""
    if isinstance(mask, Both):
        (one, some), (two, more) = _told(mask.a), _told(mask.b)
        both = some if more is None else more if some is None else torch.minimum(some, more)
        return one or two, both
    return isinstance(mask, Causal), mask.lengths if isinstance(mask, Padding) else None
