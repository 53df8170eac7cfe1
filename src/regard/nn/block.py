"""Transformer blocks: attention and feed-forward, each with a residual connection."""

from inspect import signature
from typing import Any, Unpack

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention import AttentionOptions, CacheUpdate, KeysValues, MultiHeadAttention
from regard.nn.feed_forward import Activation, FeedForward
from regard.nn.norm import NormKind, Residual
from regard.ops import Bias, Mask


class BlockOptions(AttentionOptions, total=False):
    """Keyword arguments of a block; the defaults are those of Vaswani et al. 2017.

    Args:
        ffn_dim: width of the feed-forward layer, 4 · dim by default.
        activation: its activation, "relu" by default.
        gated: whether it is gated (GLU).
        norm: "layer" (default), "rms" or "none".
        norm_first: pre-LN instead of post-LN.
        eps: of the norm, 1e-5 by default.
        bias: whether linear layers and norms have a bias.
        qkv_bias, out_bias: of the attention projections; as `bias` if None.
        dropout: of each sublayer's output.
        attention_dropout: of the attention weights.
        activation_dropout: inside the feed-forward layer.
        skip: False removes the residual connections.

    `AttentionOptions` are accepted too.

    >>> options = BlockOptions(ffn_dim=16, gated=True, norm="rms", norm_first=True, bias=False)
    >>> sum(p.numel() for p in EncoderBlock(8, 2, **options).parameters())
    656
    """

    ffn_dim: int | None
    activation: Activation
    gated: bool
    norm: NormKind
    norm_first: bool
    eps: float
    bias: bool
    qkv_bias: bool | None
    out_bias: bool | None
    dropout: float
    attention_dropout: float
    activation_dropout: float
    skip: bool


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward; with a causal mask, a decoder-only block.

    x = LN(x + MHA(x));  x = LN(x + FFN(x)),   or with norm_first  x = x + F(LN(x)) for each

    >>> block = EncoderBlock(8, 2, norm_first=True, norm="rms", activation="silu", gated=True)
    >>> block(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, dim: int, heads: int, **options: Unpack[BlockOptions]):
        super().__init__()
        parts = _split_options(options)
        self.self_attention = MultiHeadAttention(dim, heads, **parts["attention"])
        self.self_residual = Residual(dim, **parts["residual"])
        self.feed_forward = FeedForward(dim, **parts["feed_forward"])
        self.feed_forward_residual = Residual(dim, **parts["residual"])

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
        def attend_self(x: Tensor) -> Tensor:
            return self.self_attention(
                x, mask=mask, bias=bias, positions=positions, offset=offset, cache=cache
            )

        x = self.self_residual(x, attend_self)
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to a memory, and feed-forward.

    x = LN(x + MHA(x));  x = LN(x + MHA(x, memory));  x = LN(x + FFN(x)),   or pre-LN as above

    The memory may be given as projected keys and values, (k, v), to reuse them.

    >>> block, x, memory = DecoderBlock(8, 2), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    >>> projected = block.cross_attention.project_kv(memory)
    >>> torch.equal(block(x, projected), block(x, memory))
    True
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        source_dim: int | None = None,
        **options: Unpack[BlockOptions],
    ):
        super().__init__()
        parts = _split_options(options)
        attention, residual = parts["attention"], parts["residual"]
        self.self_attention = MultiHeadAttention(dim, heads, **attention)
        self.self_residual = Residual(dim, **residual)
        # rotary positions are relative within one sequence; between two they mean nothing
        cross = {**attention, "rope_theta": None}
        self.cross_attention = MultiHeadAttention(dim, heads, source_dim=source_dim, **cross)
        self.cross_residual = Residual(dim, **residual)
        self.feed_forward = FeedForward(dim, **parts["feed_forward"])
        self.feed_forward_residual = Residual(dim, **residual)

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        memory: Float[Tensor, "*batch key source_dim"] | KeysValues,
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        memory_mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "*batch time dim"]:
        def attend_self(x: Tensor) -> Tensor:
            return self.self_attention(
                x, mask=mask, bias=bias, positions=positions, offset=offset, cache=cache
            )

        def attend_memory(x: Tensor) -> Tensor:
            return self.cross_attention(x, memory, mask=memory_mask)

        x = self.self_residual(x, attend_self)
        x = self.cross_residual(x, attend_memory)
        return self.feed_forward_residual(x, self.feed_forward)


def _split_options(options: BlockOptions) -> dict[str, dict[str, Any]]:
    """The options of each part of a block: those that its constructor has a parameter for."""
    given: dict[str, Any] = {"bias": True, **options}
    for name in ("qkv_bias", "out_bias"):
        given[name] = given["bias"] if given.get(name) is None else given[name]
    renamed = {"attention": "attention_dropout", "feed_forward": "activation_dropout"}
    parts, unknown = {}, set(given) - {*renamed.values()}
    for part, kind in _PARTS.items():
        known = signature(kind.__init__).parameters
        chosen = {name: value for name, value in given.items() if name in known}
        unknown -= set(known)
        if part in renamed:  # each has a dropout of its own
            chosen["dropout"] = given.get(renamed[part], 0.0)
        parts[part] = chosen
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {sorted(unknown)[0]!r}")
    return parts


_PARTS = {"attention": MultiHeadAttention, "feed_forward": FeedForward, "residual": Residual}
