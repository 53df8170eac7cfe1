"""The registry of models, configs of Transformer stacks, and the modules built from them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import torch
from torch import nn

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
from regard.nn.layers import Activation

Model = TypeVar("Model", bound=type[nn.Module])


@runtime_checkable
class ModelConfig(Protocol):
    """The config of a model: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


MODELS: dict[str, type[nn.Module]] = {}  # by class name, as saved in files
CONFIGS: dict[type[nn.Module], type] = {}


def register_model(config: type) -> Callable[[Model], Model]:
    """Class decorator: the model can be built from this config, saved and loaded.

    >>> @register_model(ToyConfig)  # doctest: +SKIP
    ... class Toy(nn.Module): ...
    """

    def register(model: Model) -> Model:
        MODELS[model.__name__], CONFIGS[model] = model, config
        return model

    return register


def build(config: Any) -> nn.Module:
    """The model that a config describes, with newly initialised weights.

    >>> from regard.models import language_tiny
    >>> type(build(language_tiny(vocab=10))).__name__
    'LanguageModel'
    """
    for model, kind in CONFIGS.items():
        if kind is type(config):
            return model(config)
    known = ", ".join(config_types())
    raise ConfigError(f"config: needs one of {known}, got {type(config).__name__}")


def config_types() -> dict[str, type]:
    """All configs that a model can be built from, by class name.

    >>> "LanguageConfig" in config_types()
    True
    """
    return {kind.__name__: kind for kind in CONFIGS.values()}


def get_config(model: nn.Module) -> ModelConfig:
    """The config that a registered model was built from."""
    if type(model) not in CONFIGS:
        known, kind = ", ".join(sorted(MODELS)), type(model).__name__
        raise ConfigError(f"model: needs one of {known}, got {kind}; try model.state_dict()")
    return cast(ModelConfig, model.config)


@dataclass(frozen=True, kw_only=True)
class StackConfig(BlockOptions):
    """A stack of blocks with the options of `nn.BlockOptions`, by default a pre-LN Transformer.

    `relative_bias` names the position bias that all layers share.

    >>> StackConfig(layers=2, dim=64, heads=4).norm_first
    True
    """

    layers: int
    dim: int
    heads: int
    activation: Activation = "gelu"
    norm_first: bool = True
    final_norm: bool = True
    relative_bias: Literal["none", "buckets", "toeplitz", "keys", "alibi"] = "none"
    buckets: int = 32
    max_distance: int = 128  # larger distances share the last bucket, or the table's edge

    def __post_init__(self) -> None:
        check_choices(self)
        super().__post_init__()
        if self.mixer != "attention" and self.relative_bias != "none":
            raise ConfigError(
                f"relative_bias: needs 'none' with mixer={self.mixer!r}, got {self.relative_bias!r}"
            )
        sizes = ("layers", "dim", "heads", "kv_heads", "head_dim", "ffn_dim", "rope_dim", "buckets")
        check_positive(self, *sizes)
        if self.head_dim is None and self.dim % self.heads:
            raise ConfigError(f"dim: needs a multiple of heads={self.heads}, got {self.dim}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(f"kv_heads: needs a divisor of {self.heads}, got {self.kv_heads}")
        if self.rope_dim is not None and (
            self.rope_dim % 2 or self.rope_dim > self.resolved_head_dim
        ):
            raise ConfigError(
                f"rope_dim: needs an even number up to head_dim={self.resolved_head_dim}, "
                f"got {self.rope_dim}"
            )
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: needs 0 ≤ rate < 1, got {getattr(self, name)}")

    def layer_options(self, layer: int) -> BlockOptions:
        """The options of one layer."""
        return self

    @property
    def resolved_head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def resolved_rope_dim(self) -> int:
        """Features of a head that are rotated."""
        return self.rope_dim or self.resolved_head_dim

    @property
    def resolved_scale(self) -> float:
        """Factor of q · k."""
        return self.resolved_head_dim**-0.5 if self.scale is None else self.scale

    @property
    def resolved_kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.kv_heads or self.heads

    @property
    def resolved_ffn_dim(self) -> int:
        """Hidden width of the feed-forward."""
        return 4 * self.dim if self.ffn_dim is None else self.ffn_dim


Stack = TypeVar("Stack", Encoder, Decoder)


@dataclass(frozen=True, kw_only=True)
class TokenConfig(StackConfig):
    """A stack over tokens, with its input embedding.

    >>> TokenConfig(layers=1, dim=8, heads=2).positions
    'sinusoidal'
    """

    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_positions: int = 512  # size of a learned position table
    scale_embedding: bool = True  # times √dim, so that positions do not dominate
    embedding_norm: bool = False
    segments: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_positions")
        if self.segments < 0:
            raise ConfigError(f"segments: needs 0 or more, got {self.segments}")


def make_embedding(config: TokenConfig, vocab: int) -> TokenEmbedding:
    """The token embedding that a config describes.

    >>> make_embedding(TokenConfig(layers=1, dim=8, heads=2), vocab=5).token_embeddings.shape
    torch.Size([5, 8])
    """
    return TokenEmbedding(
        vocab, config.dim, positions=config.positions, max_positions=config.max_positions,
        scale_embeddings=config.scale_embedding, segments=config.segments,
        norm=config.embedding_norm, eps=config.eps, dropout=config.dropout,
    )  # fmt: skip


def make_encoder(config: StackConfig, *, bidirectional: bool = True) -> Encoder:
    """The encoder stack that a config describes; `bidirectional=False` if it is used causally.

    >>> len(make_encoder(StackConfig(layers=3, dim=8, heads=2)).blocks)
    3
    """
    return _make_stack(Encoder, config, config.layers, bidirectional, sublayers=2)


def make_decoder(config: StackConfig, layers: int) -> Decoder:
    """A decoder stack of the same sizes.

    >>> len(make_decoder(StackConfig(layers=3, dim=8, heads=2), layers=1).blocks)
    1
    """
    return _make_stack(Decoder, config, layers, bidirectional=False, sublayers=3)


def _make_stack(
    kind: type[Stack], config: StackConfig, layers: int, bidirectional: bool, sublayers: int
) -> Stack:
    relative = _relative_bias(config, bidirectional=bidirectional)
    sizes = layers, config.dim, config.heads
    options = [config.layer_options(n) for n in range(layers)]
    stack = kind(*sizes, options, final_norm=config.final_norm, relative=relative)
    if config.norm_first:  # pre-LN sums all sublayers: depth-scaled init, as in GPT-2
        with torch.no_grad():
            for name, weight in stack.named_parameters():
                if name.endswith("to_out.weight"):
                    weight *= (sublayers * layers) ** -0.5
    return stack


def check_positive(config: Any, *names: str) -> None:
    """Raise a ConfigError for a field that is neither None nor an integer of 1 or more."""
    for name in names:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}: needs a whole number of 1 or more, got {value!r}")


def check_shared_vocab(config: Any) -> None:
    """Raise a ConfigError for a shared embedding of two vocabularies."""
    if config.shared_embedding and config.source_vocab != config.target_vocab:
        raise ConfigError(
            f"target_vocab: needs source_vocab={config.source_vocab} for a shared embedding, "
            f"got {config.target_vocab}; try shared_embedding=False"
        )


def check_choices(config: Any) -> None:
    """Raise a ConfigError for a value outside the choices of a Literal field."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            words = ", ".join(map(str, get_args(hint)))
            raise ConfigError(f"{field.name}: needs one of {words}, got {value!r}")


def unimplemented_option(config: Any, implemented: str) -> str | None:
    """The first option that is not its default and not among `implemented`; None: all are.

    Whatever computes a model in another way than its modules do (an engine, an export, a cost)
    declares the names of the options it computes, so that one it does not know is refused.

    >>> config = StackConfig(layers=1, dim=8, heads=2, skip=False)
    >>> unimplemented_option(config, "layers dim heads")
    'skip'
    """
    names = without_effect(config) | set(implemented.split())
    others = (field for field in fields(config) if field.name not in names)
    return next((x.name for x in others if getattr(config, x.name) != x.default), None)


def check_implemented(config: Any, implemented: str, purpose: str) -> None:
    """Raise a ConfigError that names the option which is not implemented for a purpose."""
    name = unimplemented_option(config, implemented)
    if name is not None:
        default = next(field.default for field in fields(config) if field.name == name)
        raise ConfigError(f"{name}: needs {default!r} {purpose}, got {getattr(config, name)!r}")


def without_effect(config: Any) -> frozenset[str]:
    """Options that do not change what the model computes in evaluation mode."""
    names = {"dropout", "attention_dropout", "activation_dropout"}
    if getattr(config, "positions", None) != "learned":
        names.add("max_positions")
    if getattr(config, "relative_bias", "none") == "none":
        names |= {"buckets", "max_distance"}
    if getattr(config, "rope_theta", None) is None:
        names |= {"rotate_half", "rope_dim", "rope_scaling"}
    return frozenset(names)


def _relative_bias(config: StackConfig, *, bidirectional: bool) -> RelativeBias | None:
    match config.relative_bias:
        case "buckets":
            return BucketBias(
                config.heads,
                buckets=config.buckets,
                max_distance=config.max_distance,
                bidirectional=bidirectional,
            )
        case "toeplitz":
            return ToeplitzBias(config.heads, radius=config.max_distance)
        case "keys":
            return RelativeKeyBias(config.resolved_head_dim, radius=config.max_distance)
        case "alibi":
            return ALiBiBias(config.heads)
    return None
