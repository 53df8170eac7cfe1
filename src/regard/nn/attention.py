"""Attention with weights of its own: project, attend through the one door, mix the heads."""

from collections.abc import Callable
from typing import TypedDict

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.linear import xavier_linear
from regard.ops import Bias, Mask
from regard.ops import apply_rope as turn
from regard.ops.attend import attend_plainly

KeysValues = tuple[Tensor, Tensor]
CacheUpdate = Callable[[nn.Module, Tensor, Tensor], KeysValues]


class AttentionOptions(TypedDict, total=False):
    """What can be chosen about every attention of a block or stack, by keyword.

    >>> options = AttentionOptions(kv_heads=1, rope_theta=10000.0)
    >>> MultiHeadAttention(8, 4, **options).to_k.weight.shape
    torch.Size([2, 8])
    """

    kv_heads: int | None
    head_dim: int | None
    scale: float | None
    softcap: float | None
    sinks: bool
    rope_theta: float | None
    rotate_half: bool


class MultiHeadAttention(nn.Module):
    """Every position asks, every position of the source answers; heads do it side by side.

    y = concat_h(attend(x W_q^h, s W_k^h, s W_v^h)) W_o,   s = x unless a source is given

    The width of a head is `head_dim`, dim / heads if not given. With fewer `kv_heads` than heads, each
    serves a group of queries (one: multi-query). `rotary` is the base of rotary positions, `sinks`
    one learned score a head that takes a share and gives nothing. `scale` is 1/√head_dim if not given.

    >>> layer = MultiHeadAttention(512, 8)
    >>> sum(p.numel() for p in (layer.to_q.weight, layer.to_k.weight, layer.to_v.weight))
    786432
    >>> layer(torch.randn(2, 5, 512)).shape
    torch.Size([2, 5, 512])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        source_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        rope_theta: float | None = None,
        rotate_half: bool = False,
    ):
        super().__init__()
        _check_heads(dim, heads, kv_heads, head_dim)
        head_dim = dim // heads if head_dim is None else head_dim
        kv_heads = heads if kv_heads is None else kv_heads
        source_dim = dim if source_dim is None else source_dim
        self.heads, self.kv_heads = heads, kv_heads
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.rope_theta, self.rotate_half = rope_theta, rotate_half
        self.to_q = xavier_linear(dim, heads * head_dim, bias=qkv_bias)
        self.to_k = xavier_linear(source_dim, kv_heads * head_dim, bias=qkv_bias)
        self.to_v = xavier_linear(source_dim, kv_heads * head_dim, bias=qkv_bias)
        self.to_out = xavier_linear(
            heads * head_dim, dim, bias=qkv_bias if out_bias is None else out_bias
        )
        self.sinks = nn.Parameter(torch.zeros(heads)) if sinks else None

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        source: Float[Tensor, "*batch key source_dim"] | KeysValues | None = None,
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "*batch time dim"]:
        """What each position of x takes from the source: x itself, another sequence, or (k, v).

        `offset` is where x starts among the keys; `positions`, for rotary, follow it if not given.
        A `cache` gets the new keys and values of this layer and gives back all it holds.
        """
        q, k, v = self._project(x, source, positions, offset)
        if cache is not None:
            k, v = cache(self, k, v)
        y = attend_plainly(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            offset=offset,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.to_out(y.transpose(-2, -3).flatten(-2))

    def project_query(
        self,
        x: Float[Tensor, "*batch time dim"],
        positions: Int[Tensor, "*_ time"] | None = None,
        *,
        offset: int = 0,
    ) -> Float[Tensor, "*batch head time head_dim"]:
        """What each position asks.

        q = turned(x W_q), split into heads

        >>> MultiHeadAttention(6, 2).project_query(torch.zeros(1, 4, 6)).shape
        torch.Size([1, 2, 4, 3])
        """
        _check_width("x", x, self.to_q.in_features)
        return self._turned(_split(self.to_q(x), self.heads), positions, offset)

    def project_kv(
        self,
        source: Float[Tensor, "*batch key source_dim"],
        positions: Int[Tensor, "*_ key"] | None = None,
        *,
        offset: int = 0,
    ) -> tuple[Float[Tensor, "*batch head key head_dim"], Float[Tensor, "*batch head key head_dim"]]:
        """What each position of the source answers to, and what it gives; forward takes the pair.

        k = turned(s W_k),   v = s W_v, split into heads

        >>> layer, x, s = MultiHeadAttention(6, 2), torch.randn(1, 4, 6), torch.randn(1, 5, 6)
        >>> torch.equal(layer(x, layer.project_kv(s)), layer(x, s))
        True
        """
        _check_width("source", source, self.to_k.in_features)
        k, v = (_split(x, self.kv_heads) for x in _mapped(source, self.to_k, self.to_v))
        return self._turned(k, positions, offset), v

    def _project(
        self, x: Tensor, source: Tensor | KeysValues | None, positions: Tensor | None, offset: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What is asked, what it is compared with and what is given, each split into heads."""
        if source is None:
            _check_width("x", x, self.to_q.in_features)
            q, k, v = _mapped(x, self.to_q, self.to_k, self.to_v)
            q = self._turned(_split(q, self.heads), positions, offset)
            k = self._turned(_split(k, self.kv_heads), positions, offset)
            return q, k, _split(v, self.kv_heads)
        q = self.project_query(x, positions, offset=offset)
        return q, *(source if isinstance(source, tuple) else self.project_kv(source))

    def _turned(self, x: Tensor, positions: Tensor | None, offset: int) -> Tensor:
        if self.rope_theta is None:
            return x
        if positions is None:
            positions = torch.arange(offset, offset + x.shape[-2], device=x.device)
        elif positions.ndim > 1:
            positions = positions.unsqueeze(-2)  # the same for every head
        return turn(x, positions, self.rope_theta, rotate_half=self.rotate_half)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def _mapped(x: Tensor, *maps: nn.Linear) -> tuple[Tensor, ...]:
    """What several linear maps make of x; by one product where `_at_once` says so.

    (x W₁ᵀ, x W₂ᵀ, …) = x [W₁; W₂; …]ᵀ, cut
    """
    if not _at_once(x, *maps):
        return tuple(to(x) for to in maps)
    weight = torch.cat([to.weight for to in maps])
    some: list[Tensor] = [to.bias for to in maps if to.bias is not None]
    y = F.linear(x, weight, torch.cat(some) if some else None)
    return y.split([to.out_features for to in maps], -1)


def _at_once(x: Tensor, *maps: nn.Linear) -> bool:
    """Whether one product pays: in training on a GPU, where tokens outnumber weights by far.

    x is then made half as wide once instead of three times, and its gradient is one product too.
    A map that is watched, or is no plain one, is asked by itself.
    """
    return x.is_cuda and maps[0].training and _are_plain(*maps)


def _are_plain(*maps: nn.Linear) -> bool:
    bare = maps[0].bias is None
    return all(
        type(to) is nn.Linear
        and (to.bias is None) == bare
        and not (to._forward_hooks or to._forward_pre_hooks)
        and not (to._backward_hooks or to._backward_pre_hooks)
        for to in maps
    )


def _check_heads(dim: int, heads: int, kv_heads: int | None, head_dim: int | None) -> None:
    if heads < 1 or (head_dim is None and dim % heads):
        raise ShapeError(
            f"dim: needs a multiple of heads={heads}, got {dim}; try another count, or head_dim=…"
        )
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        raise ShapeError(f"kv_heads: needs a divisor of heads={heads}, got {kv_heads}")


def _check_width(name: str, x: Tensor, dim: int) -> None:
    if x.shape[-1] == dim:
        return
    turned = x.ndim > 1 and x.shape[-2] == dim
    hint = f"; tokens are rows here, try {name}.mT" if turned else ""
    raise ShapeError(f"{name}: needs dim={dim} as its last axis, got {tuple(x.shape)}{hint}")
