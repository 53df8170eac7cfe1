"""One layer of a Transformer: attention and feed-forward, each with its residual."""

from inspect import signature
from typing import Any, Unpack

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention import AttentionOptions, CacheUpdate, KeysValues, MultiHeadAttention
from regard.nn.feed_forward import Activation, FeedForward
from regard.nn.norm import NormKind, Residual
from regard.ops import Bias, Mask


class BlockOptions(AttentionOptions, total=False):
    """What can be chosen about a block, by keyword; left out, it is the Transformer of the paper.

    On top of attention's: `hidden` width of the feed-forward (4 · dim), its `activation` (relu) and
    whether it is `gated`; `norm` (layer) with its `eps` (1e-5), `norm_first` for pre-LN; `bias` of
    every linear map and norm, `qkv_bias` and `out_bias` of attention (None: as `bias`); dropout of
    what is added, of the attention weights, and inside the
    feed-forward; `skip=False` takes the residual connections out.

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
    """Look at the other positions, then think alone. With a causal mask, a decoder-only block.

    x = LN(x + MHA(x));  x = LN(x + FFN(x)),   or with norm_first  x = x + F(LN(x)) for each

    >>> block = EncoderBlock(8, 2, norm_first=True, norm="rms", activation="silu", gated=True)
    >>> block(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, dim: int, heads: int, **options: Unpack[BlockOptions]):
        super().__init__()
        chosen = _sort_out(options)
        self.self_attention = MultiHeadAttention(dim, heads, **chosen["attention"])
        self.self_residual = Residual(dim, **chosen["residual"])
        self.feed_forward = FeedForward(dim, **chosen["feed_forward"])
        self.feed_forward_residual = Residual(dim, **chosen["residual"])

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
        def look(x: Tensor) -> Tensor:
            return self.self_attention(
                x, mask=mask, bias=bias, positions=positions, offset=offset, cache=cache
            )

        x = self.self_residual(x, look)
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderBlock(nn.Module):
    """Look at what was said so far, then at what was read, then think alone.

    x = LN(x + MHA(x));  x = LN(x + MHA(x, memory));  x = LN(x + FFN(x)),   or pre-LN as above

    The memory may be given as keys and values already projected, (k, v), to use them again.

    >>> block, x, memory = DecoderBlock(8, 2), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    >>> once = block.cross_attention.project_kv(memory)
    >>> torch.equal(block(x, once), block(x, memory))
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
        chosen = _sort_out(options)
        attention, residual = chosen["attention"], chosen["residual"]
        self.self_attention = MultiHeadAttention(dim, heads, **attention)
        self.self_residual = Residual(dim, **residual)
        # positions turn queries against keys of one sequence; between two they mean nothing
        across = {**attention, "rope_theta": None}
        self.cross_attention = MultiHeadAttention(dim, heads, source_dim=source_dim, **across)
        self.cross_residual = Residual(dim, **residual)
        self.feed_forward = FeedForward(dim, **chosen["feed_forward"])
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
        def look_back(x: Tensor) -> Tensor:
            return self.self_attention(
                x, mask=mask, bias=bias, positions=positions, offset=offset, cache=cache
            )

        def look_across(x: Tensor) -> Tensor:
            return self.cross_attention(x, memory, mask=memory_mask)

        x = self.self_residual(x, look_back)
        x = self.cross_residual(x, look_across)
        return self.feed_forward_residual(x, self.feed_forward)


def _sort_out(options: BlockOptions) -> dict[str, dict[str, Any]]:
    """Which option belongs to which part: the one whose constructor has a parameter of its name."""
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
