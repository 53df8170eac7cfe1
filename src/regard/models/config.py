"""What the sizes and choices of a stack are, checked on the spot, and what is built from them."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

from regard.errors import ConfigError
from regard.nn import (
    ALiBiBias,
    BlockOptions,
    BucketBias,
    Decoder,
    Encoder,
    RelativeBias,
    RelativeKeyBias,
    ToeplitzBias,
    TokenEmbedding,
)
from regard.nn.feed_forward import Activation
from regard.nn.norm import NormKind


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Blocks on top of each other. The defaults are the pre-LN Transformer of today.

    Left out, `feat` is dim / heads, `key_heads` is heads, `hidden` is 4 · dim, `scale` is 1/√feat.
    `rotary` is the base of rotary positions. `relative` names a bias that all layers share.

    >>> StackConfig(layers=2, dim=64, heads=4).block_options["norm_first"]
    True
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_dim: int | None = None
    activation: Activation = "gelu"
    gated: bool = False
    norm: NormKind = "layer"
    norm_first: bool = True
    final_norm: bool = True
    eps: float = 1e-5
    bias: bool = True
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    rope_theta: float | None = None
    rotate_half: bool = False
    relative_bias: Literal["none", "buckets", "toeplitz", "keys", "alibi"] = "none"
    buckets: int = 32
    max_distance: int = 128  # distances beyond are one: the last bucket, or the table's radius
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    skip: bool = True

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "layers", "dim", "heads", "kv_heads", "head_dim", "ffn_dim", "buckets")
        if self.head_dim is None and self.dim % self.heads:
            raise ConfigError(f"dim: needs a multiple of heads={self.heads}, got {self.dim}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(f"kv_heads: needs a divisor of {self.heads}, got {self.kv_heads}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: needs 0 ≤ rate < 1, got {getattr(self, name)}")

    @property
    def block_options(self) -> BlockOptions:
        """What each block is told."""
        chosen = asdict(self)
        return BlockOptions(**{name: chosen[name] for name in _OPTIONS})

    @property
    def resolved_head_dim(self) -> int:
        """The width of one head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def resolved_kv_heads(self) -> int:
        """How many heads have keys and values of their own."""
        return self.kv_heads or self.heads

    @property
    def resolved_ffn_dim(self) -> int:
        """The width inside a feed-forward."""
        return 4 * self.dim if self.ffn_dim is None else self.ffn_dim


Stack = TypeVar("Stack", Encoder, Decoder)
_OPTIONS = tuple(BlockOptions.__annotations__)


@dataclass(frozen=True, kw_only=True)
class TokenConfig(StackConfig):
    """A stack that reads tokens: how they are embedded.

    >>> TokenConfig(layers=1, dim=8, heads=2).positions
    'sinusoidal'
    """

    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_positions: int = 512  # where learned positions end
    scale_embedding: bool = True  # embeddings times √dim, so that positions do not drown them
    embedding_norm: bool = False
    segments: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_positions")
        if self.segments < 0:
            raise ConfigError(f"segments: needs 0 or more, got {self.segments}")


def make_embedding(config: TokenConfig, vocab: int) -> TokenEmbedding:
    """The input stage that the config describes.

    >>> make_embedding(TokenConfig(layers=1, dim=8, heads=2), vocab=5).token_embeddings.shape
    torch.Size([5, 8])
    """
    return TokenEmbedding(
        vocab,
        config.dim,
        positions=config.positions,
        max_positions=config.max_positions,
        scale_embeddings=config.scale_embedding,
        segments=config.segments,
        norm=config.embedding_norm,
        eps=config.eps,
        dropout=config.dropout,
    )


def make_encoder(config: StackConfig, *, bidirectional: bool = True) -> Encoder:
    """The stack of encoder blocks; `bidirectional=False` if it will only ever look back.

    >>> len(make_encoder(StackConfig(layers=3, dim=8, heads=2)).blocks)
    3
    """
    encoder = Encoder(
        config.layers,
        config.dim,
        config.heads,
        final_norm=config.final_norm,
        relative=_relative(config, both_sides=bidirectional),
        **config.block_options,
    )
    return _calmed(encoder, config, residuals=2 * config.layers)


def make_decoder(config: StackConfig, layers: int) -> Decoder:
    """The stack of decoder blocks, of the same sizes.

    >>> len(make_decoder(StackConfig(layers=3, dim=8, heads=2), layers=1).blocks)
    1
    """
    decoder = Decoder(
        layers,
        config.dim,
        config.heads,
        final_norm=config.final_norm,
        relative=_relative(config, both_sides=False),
        **config.block_options,
    )
    return _calmed(decoder, config, residuals=3 * layers)


def check_positive(config: Any, *names: str) -> None:
    """Raise a ConfigError for a size that is not a whole number of 1 or more (None is left out)."""
    for name in names:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}: needs a whole number of 1 or more, got {value!r}")


def check_choices(config: Any) -> None:
    """Raise a ConfigError for a word that is not among those its field allows."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            words = ", ".join(map(str, get_args(hint)))
            raise ConfigError(f"{field.name}: needs one of {words}, got {value!r}")


def _relative(config: StackConfig, *, both_sides: bool) -> RelativeBias | None:
    match config.relative_bias:
        case "buckets":
            return BucketBias(
                config.heads,
                buckets=config.buckets,
                max_distance=config.max_distance,
                bidirectional=both_sides,
            )
        case "toeplitz":
            return ToeplitzBias(config.heads, radius=config.max_distance)
        case "keys":
            return RelativeKeyBias(config.resolved_head_dim, radius=config.max_distance)
        case "alibi":
            return ALiBiBias(config.heads)
    return None


def _calmed(stack: Stack, config: StackConfig, residuals: int) -> Stack:
    """Pre-LN sums all its sublayers: each starts smaller, so that depth does not add up."""
    if config.norm_first:
        with torch.no_grad():
            for name, weight in stack.named_parameters():
                if name.endswith("to_out.weight"):
                    weight *= residuals**-0.5
    return stack
