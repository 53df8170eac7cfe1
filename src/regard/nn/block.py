"""Transformer blocks: attention and feed-forward, each with a residual connection."""

from typing import TypedDict, Unpack

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


class _Parts(TypedDict):
    attention: dict
    feed_forward: dict
    residual: dict


def _split_options(options: BlockOptions) -> _Parts:
    """The options of each part of a block."""
    given = dict(options)
    bias, ffn_names = given.pop("bias", True), ("ffn_dim", "activation", "gated")
    feed_forward = {name: given.pop(name) for name in ffn_names if name in given}
    names = ("norm", "norm_first", "eps", "dropout", "skip")
    residual = {name: given.pop(name) for name in names if name in given}
    feed_forward["dropout"] = given.pop("activation_dropout", 0.0)
    given["dropout"] = given.pop("attention_dropout", 0.0)  # the remaining options are attention's
    return {
        "attention": {**given, "qkv_bias": bias},
        "feed_forward": {**feed_forward, "bias": bias},
        "residual": {**residual, "bias": bias},
    }
