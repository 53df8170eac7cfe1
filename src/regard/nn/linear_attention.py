"""Linear attention: what a layer reads of a matrix that each token decays and writes to."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.attention import CacheUpdate, MultiHeadAttention
from regard.nn.layers import Norm, xavier_linear
from regard.ops import Bias, Causal, Documents, Mask, Padding, RopeScaling
from regard.ops.mixers import LinearMixer, mix

MixerKind = Literal["attention", "gated_delta", "retention"]
MEMORY = (7.0, 700.0)  # tokens until half is forgotten, of the first and last head before training


class LinearAttention(nn.Module):
    """A linear mixer in the place of self-attention, from left to right whatever the mask.

    gated_delta (Yang et al. 2025, without its short convolution), q and k of length 1:
    S_t = e^{g_t} S_{t-1} (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ,   β = σ(x W_β),   g = -softplus(x W_g)
    retention (Sun et al. 2023), head h:   S_t = (1 - 2^{-5-h}) S_{t-1} + k_t v_tᵀ
    y = concat_h(RMSnorm(S_tᵀ q_t)) W_o

    Padded tokens are not written, and nothing is remembered across packed documents. In generation
    the cache holds the keys, values and gates of all tokens, and each step runs over them. The
    arguments that are not listed are those of `MultiHeadAttention`.

    Args:
        heads: number of heads, each with a state of its own.
        mixer: "gated_delta" or "retention".
        eps: of the norm.

    >>> LinearAttention(16, 2)(torch.randn(3, 5, 16)).shape
    torch.Size([3, 5, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mixer: MixerKind = "gated_delta",
        head_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool | None = None,
        rope_theta: float | None = None,
        rotate_half: bool = False,
        rope_dim: int | None = None,
        rope_scaling: RopeScaling | None = None,
        eps: float = 1e-5,
    ):
        super().__init__()
        if head_dim is None and dim % heads:
            raise ShapeError(f"dim: needs a multiple of heads={heads}, got {dim}; try head_dim")
        head_dim = dim // heads if head_dim is None else head_dim
        self.mixer, self.heads, self.head_dim = mixer, heads, head_dim
        self.rope_theta, self.rotate_half = rope_theta, rotate_half
        self.rope_dim, self.rope_scaling = rope_dim, rope_scaling
        self.to_q, self.to_k, self.to_v = (
            xavier_linear(dim, heads * head_dim, bias=qkv_bias) for _ in range(3)
        )
        self.to_beta = self.to_decay = None
        if mixer == "gated_delta":
            self.to_beta, self.to_decay = xavier_linear(dim, heads), xavier_linear(dim, heads)
            with torch.no_grad():  # a range of memories, hardly dependent on the token at first
                first, last = map(math.log, MEMORY)
                decay = math.log(2) / torch.linspace(first, last, heads).exp()
                self.to_decay.bias.copy_(decay.expm1().log())  # softplus of it is the decay
                self.to_decay.weight *= 0.1
        self.norm = Norm(head_dim, "rms", eps=eps)
        self.to_out = xavier_linear(
            heads * head_dim, dim, bias=qkv_bias if out_bias is None else out_bias
        )

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "*batch time dim"]:
        """Mix from left to right; arguments as in `MultiHeadAttention.forward`.

        The mask is of Causal, Padding and Documents, and there is no bias; others are errors. The
        cache receives the new keys, values and gates of this layer, and returns all it holds.
        """
        if bias is not None:
            kind = type(bias).__name__
            raise ShapeError(
                f"bias: needs None for linear attention, got {kind}; try relative_bias='none'"
            )
        rows = x.flatten(0, -3) if x.ndim > 2 else x[None]
        q, k, v = (
            layer(rows).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        q, k = (self._apply_rope(y, positions, offset) for y in (q, k))
        out = self._mix(q, k, v, self._gates(rows), mask, offset, cache)
        return self.to_out(self.norm(out).transpose(-2, -3).flatten(-2)).view(*x.shape[:-1], -1)

    _apply_rope = MultiHeadAttention._apply_rope

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, gates: tuple[Tensor, Tensor],
        mask: Mask | Tensor | None, offset: int, cache: CacheUpdate | None,
    ) -> Tensor:  # fmt: skip
        (batch, _, time, _), (decay, beta) = q.shape, gates
        valid, resets = _read_mask(mask, batch, offset + time, q.device)
        if valid is not None:  # padding neither forgets nor writes
            now = valid[:, None, offset:]
            decay, beta = decay.masked_fill(~now, 0), beta.masked_fill(~now, 0)
            k, v = k.masked_fill(~now[..., None], 0), v.masked_fill(~now[..., None], 0)
        if self.to_beta is None:
            q = q * self.head_dim**-0.5
        else:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if cache is not None:
            k = torch.cat([k, torch.stack([decay, beta], -1).to(k.dtype)], -1)
            k, v = cache(self, k, F.pad(v, (0, 2)))
            (k, decay, beta), v = k.split([self.head_dim, 1, 1], -1), v[..., :-2]
            decay, beta, q = decay[..., 0], beta[..., 0], F.pad(q, (0, 0, k.shape[-2] - time, 0))
        resets = None if resets is None else resets[:, offset + time - k.shape[-2] :]
        given = {"log_decay": decay, "beta": beta, "resets": resets}
        mixer = LinearMixer(q=q, k=k, v=v, delta=self.to_beta is not None, **given)
        return mix(mixer).out[..., -time:, :]

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log decay and β, each (batch, head, time)."""
        if self.to_beta is not None and self.to_decay is not None:
            return -F.softplus(self.to_decay(x).mT), self.to_beta(x).mT.sigmoid()
        heads = torch.arange(self.heads, device=x.device, dtype=x.dtype)
        decay = torch.log1p(-(2 ** (-5 - heads)))[:, None].expand(len(x), -1, x.shape[-2])
        return decay, torch.ones_like(decay)


def _read_mask(
    mask: Mask | Tensor | None, batch: int, time: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Which tokens are none of padding, and before which the state is cleared; (batch, time)."""
    valid = resets = None
    j = torch.arange(time, device=device)
    for part in [] if mask is None else mask.parts if isinstance(mask, Mask) else [mask]:
        if isinstance(part, Padding):
            part.check(batch, time, time)
            some = part.at(torch.arange(batch, device=device)[:, None], j, j, j)
            valid = some if valid is None else valid & some
        elif isinstance(part, Documents):
            part.check(batch, time, time)
            new = F.pad(part.ids[:, :time].diff(dim=-1) != 0, (1, 0))
            resets = new if resets is None else resets | new
        elif not isinstance(part, Causal):
            raise ShapeError(
                "mask: needs Causal, Padding or Documents for linear attention, "
                f"got {type(part).__name__}; try mixer='attention'"
            )
    return valid, resets
