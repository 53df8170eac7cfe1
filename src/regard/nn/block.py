"""Transformer blocks: attention and feed-forward, each with a residual connection."""

from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any, Unpack

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import AttentionInputs, KeysValues, MultiHeadAttention, QKNorm
from regard.nn.layers import Activation, FeedForward, NormKind, Residual
from regard.nn.linear_attention import LinearAttention, MixerKind
from regard.ops import Mask, RopeScaling

# options that a linear mixer has no counterpart of
ATTENTION_ONLY = ("kv_heads", "scale", "softcap", "sinks", "qk_norm", "attention_dropout")


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """Options of a block; the defaults are those of Vaswani et al. 2017.

    Fields of attention are those of `MultiHeadAttention`; None stands for kv_heads = heads,
    head_dim = dim / heads, ffn_dim = 4 · dim, scale = 1/√head_dim, qkv_bias and out_bias = bias.

    >>> options = BlockOptions(ffn_dim=16, gated=True, norm="rms", norm_first=True, bias=False)
    >>> sum(p.numel() for p in EncoderBlock(8, 2, options).parameters())
    656
    """

    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_dim: int | None = None  # hidden width of the feed-forward layer
    activation: Activation = "relu"
    gated: bool = False  # feed-forward with a gate (GLU)
    norm: NormKind = "layer"
    norm_first: bool = False  # pre-LN instead of post-LN
    output_norm: bool = False  # norm of each sublayer's output before it is added, see `Residual`
    parallel: bool = False  # each sublayer reads the input of the block
    eps: float = 1e-5
    bias: bool = True  # of linear layers and norms
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    rope_theta: float | None = None
    rotate_half: bool = False
    rope_dim: int | None = None  # features of a head that are rotated
    rope_scaling: RopeScaling | None = None
    qk_norm: QKNorm = "none"
    dropout: float = 0.0  # of each sublayer's output
    attention_dropout: float = 0.0  # of the attention weights
    activation_dropout: float = 0.0  # inside the feed-forward layer
    skip: bool = True  # False removes the residual connections
    mixer: MixerKind = "attention"  # what mixes the tokens of one sequence

    def __post_init__(self) -> None:
        if self.mixer != "attention":
            for name in ATTENTION_ONLY:
                value, default = getattr(self, name), getattr(BlockOptions, name)
                if value != default:
                    raise ConfigError(
                        f"{name}: needs {default!r} with mixer={self.mixer!r}, got {value!r}"
                    )

    @property
    def resolved_qkv_bias(self) -> bool:
        """Whether query, key and value projections have biases."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    @property
    def resolved_out_bias(self) -> bool:
        """Whether the output projection of attention has a bias."""
        return self.bias if self.out_bias is None else self.out_bias


POST_LN = BlockOptions()


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward; with a causal mask, a decoder-only block.

    x = LN(x + MHA(x));  x = LN(x + FFN(x)),   or with norm_first  x = x + F(LN(x)) for each
    parallel and norm_first: x + MHA(LN(x)) + FFN(LN'(x))

    >>> block = EncoderBlock(8, 2, norm_first=True, norm="rms", activation="silu", gated=True)
    >>> block(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, dim: int, heads: int, options: BlockOptions = POST_LN, **changes: Any):
        super().__init__()
        options = replace(options, **changes)
        self.parallel = options.parallel
        self.self_attention = _attention(options, dim, heads)
        self.self_residual = Residual(dim, **_arguments(Residual, options))
        self.feed_forward = _feed_forward(options, dim)
        self.feed_forward_residual = Residual(dim, **_arguments(Residual, options))

    def forward(
        self, x: Float[Tensor, "*batch time dim"], **inputs: Unpack[AttentionInputs]
    ) -> Float[Tensor, "*batch time dim"]:
        y = self.self_residual(x, self.self_attention(self.self_residual.prepare(x), **inputs))
        around = self.feed_forward_residual
        return around(y, self.feed_forward(around.prepare(x if self.parallel else y)))


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to a memory, and feed-forward.

    x = LN(x + MHA(x));  x = LN(x + MHA(x, memory));  x = LN(x + FFN(x)),   or pre-LN as above

    The memory may be given as projected keys and values, (k, v), to reuse them.

    >>> block, x, memory = DecoderBlock(8, 2), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    >>> projected = block.cross_attention.project_kv(memory)
    >>> torch.equal(block(x, projected), block(x, memory))
    True
    """

    def __init__(self, dim: int, heads: int, options: BlockOptions = POST_LN, **changes: Any):
        super().__init__()
        options = replace(options, **changes)
        self.parallel = options.parallel
        self.self_attention = _attention(options, dim, heads)
        self.self_residual = Residual(dim, **_arguments(Residual, options))
        # rotary positions are relative within one sequence; between two they mean nothing
        cross = replace(options, rope_theta=None, mixer="attention")
        self.cross_attention = _attention(cross, dim, heads)
        self.cross_residual = Residual(dim, **_arguments(Residual, options))
        self.feed_forward = _feed_forward(options, dim)
        self.feed_forward_residual = Residual(dim, **_arguments(Residual, options))

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        memory: Float[Tensor, "*batch key dim"] | KeysValues,
        *,
        memory_mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        **inputs: Unpack[AttentionInputs],
    ) -> Float[Tensor, "*batch time dim"]:
        y = self.self_residual(x, self.self_attention(self.self_residual.prepare(x), **inputs))
        around, read = self.cross_residual, x if self.parallel else y
        y = around(y, self.cross_attention(around.prepare(read), memory, mask=memory_mask))
        around, read = self.feed_forward_residual, x if self.parallel else y
        return around(y, self.feed_forward(around.prepare(read)))


def _attention(options: BlockOptions, dim: int, heads: int) -> Any:
    kind = MultiHeadAttention if options.mixer == "attention" else LinearAttention
    more = {"qkv_bias": options.resolved_qkv_bias, "out_bias": options.resolved_out_bias}
    if kind is MultiHeadAttention:
        more = more | {"dropout": options.attention_dropout}
    return kind(dim, heads, **_arguments(kind, options, **more))


def _feed_forward(options: BlockOptions, dim: int) -> FeedForward:
    return FeedForward(dim, **_arguments(FeedForward, options, dropout=options.activation_dropout))


def _arguments(part: type[nn.Module], options: BlockOptions, **more: Any) -> dict[str, Any]:
    """The options that the constructor of a part has a parameter for, and others."""
    known = signature(part.__init__).parameters
    names = [field.name for field in fields(BlockOptions) if field.name in known]
    return {name: getattr(options, name) for name in names} | more
