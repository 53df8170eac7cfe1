"""Multi-head attention: project, attend, combine the heads."""

from collections.abc import Callable
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.layers import Norm, xavier_linear
from regard.ops import Bias, Mask, RopeScaling, apply_rope, attend

KeysValues = tuple[Tensor, Tensor]
QKNorm = Literal["none", "head", "all"]
CacheUpdate = Callable[[nn.Module, Tensor, Tensor], KeysValues]


class TokenInputs(TypedDict, total=False):
    """Keyword arguments about the new tokens, which stacks and blocks pass on to attention."""

    positions: Int[Tensor, "*_ time"] | None
    offset: int
    cache: CacheUpdate | None


class AttentionInputs(TokenInputs, total=False):
    """All keyword arguments of self-attention, see `MultiHeadAttention.forward`."""

    mask: Mask | Bool[Tensor, "... _ _"] | None
    bias: Bias | Float[Tensor, "... _ _"] | None


class MultiHeadAttention(nn.Module):
    """Multi-head self- or cross-attention.

    y = concat_h(attend(x W_q^h, s W_k^h, s W_v^h)) W_o,   s = x unless a source is given

    Args:
        dim: width of the input and output.
        heads: number of query heads.
        source_dim: width of the source, dim by default.
        qkv_bias: whether the query, key and value projections have a bias.
        out_bias: the same for the output projection, `qkv_bias` by default.
        dropout: dropout of the attention weights.
        kv_heads: number of key and value heads, a divisor of heads (grouped-query attention).
        head_dim: width of a head, dim / heads by default.
        scale: factor of q · k, 1/√head_dim by default.
        softcap: bound of the scores, softcap · tanh(s / softcap).
        sinks: learn one logit per head that takes part in the softmax and has no value.
        rope_theta: base of rotary positions; None for none.
        rotate_half: pair features as Llama does, see `ops.apply_rope`.
        rope_dim: number of features of a head that are rotated, all by default.
        rope_scaling: of the rotary frequencies, for long inputs.
        qk_norm: RMS norm of queries and keys, over each "head" (Qwen 3) or over "all" (OLMo 2).
        eps: of this norm.

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
        rope_dim: int | None = None,
        rope_scaling: RopeScaling | None = None,
        qk_norm: QKNorm = "none",
        eps: float = 1e-5,
    ):
        super().__init__()
        if heads < 1 or (head_dim is None and dim % heads):
            raise ShapeError(
                f"dim: needs a multiple of heads={heads}, got {dim}; "
                "try another count, or head_dim=…"
            )
        if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
            raise ShapeError(f"kv_heads: needs a divisor of heads={heads}, got {kv_heads}")
        head_dim = dim // heads if head_dim is None else head_dim
        kv_heads = heads if kv_heads is None else kv_heads
        source_dim = dim if source_dim is None else source_dim
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.rope_theta, self.rotate_half = rope_theta, rotate_half
        self.rope_dim, self.rope_scaling, self.qk_norm = rope_dim, rope_scaling, qk_norm
        self.to_q = xavier_linear(dim, heads * head_dim, bias=qkv_bias)
        self.to_k = xavier_linear(source_dim, kv_heads * head_dim, bias=qkv_bias)
        self.to_v = xavier_linear(source_dim, kv_heads * head_dim, bias=qkv_bias)
        self.to_out = xavier_linear(
            heads * head_dim, dim, bias=qkv_bias if out_bias is None else out_bias
        )
        self.sinks = nn.Parameter(torch.zeros(heads)) if sinks else None
        self.q_norm = self.k_norm = None
        if qk_norm != "none":
            each = (1, 1) if qk_norm == "head" else (heads, kv_heads)
            self.q_norm, self.k_norm = (Norm(n * head_dim, "rms", eps=eps) for n in each)

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
        """Attend from x to the source.

        Args:
            x: the queries' sequence.
            source: the keys' sequence, or projected keys and values; x by default.
            mask: which keys each query may attend to.
            bias: what is added to the scores.
            positions: for rotary positions; offset, offset + 1, … by default.
            offset: position of x among the keys.
            cache: receives the new keys and values of this layer, returns all it holds.
        """
        if source is None:
            _check_width("x", x, self.to_q.in_features)
            q, k, v = _project(x, self.to_q, self.to_k, self.to_v)
            q = self._apply_rope(_split(q, self.heads, self.q_norm), positions, offset)
            k = self._apply_rope(_split(k, self.kv_heads, self.k_norm), positions, offset)
            v = _split(v, self.kv_heads)
        else:
            q = self.project_query(x, positions, offset=offset)
            k, v = source if isinstance(source, tuple) else self.project_kv(source)
        if cache is not None:
            k, v = cache(self, k, v)
        y, _ = attend(
            q, k, v, mask=mask, bias=bias, scale=self.scale, softcap=self.softcap,
            sinks=self.sinks, offset=offset, dropout=self.dropout if self.training else 0.0,
            need_lse=False,
        )  # fmt: skip
        return self.to_out(y.transpose(-2, -3).flatten(-2))

    def project_query(
        self,
        x: Float[Tensor, "*batch time dim"],
        positions: Int[Tensor, "*_ time"] | None = None,
        *,
        offset: int = 0,
    ) -> Float[Tensor, "*batch head time head_dim"]:
        """The queries of x, split into heads.

        q = rope(norm(x W_q))
        """
        _check_width("x", x, self.to_q.in_features)
        q = _split(self.to_q(x), self.heads, self.q_norm)
        return self._apply_rope(q, positions, offset)

    def project_kv(
        self,
        source: Float[Tensor, "*batch key source_dim"],
        positions: Int[Tensor, "*_ key"] | None = None,
        *,
        offset: int = 0,
    ) -> KeysValues:
        """The keys and values of a source, split into heads; `forward` accepts the pair.

        k = rope(norm(s W_k)),   v = s W_v
        """
        _check_width("source", source, self.to_k.in_features)
        k, v = _project(source, self.to_k, self.to_v)
        k = _split(k, self.kv_heads, self.k_norm)
        return self._apply_rope(k, positions, offset), _split(v, self.kv_heads)

    def _apply_rope(self, x: Tensor, positions: Tensor | None, offset: int) -> Tensor:
        if self.rope_theta is None:
            return x
        if positions is None:
            positions = torch.arange(offset, offset + x.shape[-2], device=x.device)
        elif positions.ndim > 1:
            positions = positions.unsqueeze(-2)  # the same for every head
        return apply_rope(
            x, positions, self.rope_theta, rotate_half=self.rotate_half, rope_dim=self.rope_dim,
            scaling=self.rope_scaling,
        )  # fmt: skip


def _split(x: Tensor, heads: int, norm: Norm | None = None) -> Tensor:
    """The heads of projected tokens; the norm is over one head or over all, as its gain is."""
    split = x.unflatten(-1, (heads, -1))
    if norm is not None and norm.gain is not None:
        split = norm(split) if len(norm.gain) == split.shape[-1] else norm(x).view_as(split)
    return split.transpose(-2, -3)


def _project(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear layers on x, as one product x [W₁; W₂; …]ᵀ where that is faster."""
    if not _can_fuse(x, *layers):
        return tuple(layer(x) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    y = F.linear(x, weight, torch.cat(biases) if biases else None)
    return y.split([layer.out_features for layer in layers], -1)


def _can_fuse(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether one product pays: in training on a GPU, where tokens far outnumber weights.

    Autocast then casts x once instead of three times, and its gradient is one product too.
    """
    return x.is_cuda and layers[0].training and _are_plain(*layers)


def _are_plain(*layers: nn.Linear) -> bool:
    """Whether all are `nn.Linear` without hooks, alike in having a bias."""
    return all(
        type(layer) is nn.Linear
        and (layer.bias is None) == (layers[0].bias is None)
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
        for layer in layers
    )


def _check_width(name: str, x: Tensor, dim: int) -> None:
    if x.shape[-1] == dim:
        return
    is_transposed = x.ndim > 1 and x.shape[-2] == dim
    hint = f"; tokens are rows here, try {name}.mT" if is_transposed else ""
    raise ShapeError(f"{name}: needs dim={dim} as its last axis, got {tuple(x.shape)}{hint}")
