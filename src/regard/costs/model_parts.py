"""Which parts each model is made of, and the sizes they run at."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, cast

from torch import nn

from regard import models
from regard.costs import layer_costs as parts_of
from regard.costs.layer_costs import CostCounter, CostPart
from regard.errors import ConfigError
from regard.nn import (
    AttentiveRecurrent,
    BahdanauDecoder,
    Decoder,
    Encoder,
    FeedForward,
    LuongDecoder,
    MultiHeadAttention,
    Norm,
    Recurrent,
)

DEFAULT_TOKENS, DEFAULT_IMAGE_SIDE = 512, 28  # sizes that are taken when none is given


@dataclass(frozen=True)
class InputSizes:
    """How much goes in: tokens or frames (or the side of a picture), and the target's tokens."""

    source: int | None
    target: int
    counter: CostCounter

    @property
    def tokens(self) -> int:
        return DEFAULT_TOKENS if self.source is None else self.source


@singledispatch
def iter_cost_parts(model: nn.Module, sizes: InputSizes) -> Iterator[CostPart]:
    """The parts of a model or layer of ours, in the order they run."""
    raise ConfigError(
        f"model: needs one of ours, got {type(model).__name__}; try models.from_transformers"
    )


@iter_cost_parts.register
def _(model: models.Translator, sizes: InputSizes) -> Iterator[CostPart]:
    count, m, n, config = sizes.counter, sizes.tokens, sizes.target, model.config
    yield parts_of.embedding_cost(count, "source embedding", "source", model.source_embedding, m)
    yield from _encoder(count, model.encoder, m, "encoder ")
    yield parts_of.embedding_cost(count, "target embedding", "target", model.target_embedding, n)
    yield from _decoder(count, model.decoder, n, m)
    yield parts_of.readout_cost(count, model.readout, config.dim, config.target_vocab, n)


@iter_cost_parts.register
def _(model: models.RecurrentTranslator, sizes: InputSizes) -> Iterator[CostPart]:
    count, m, n, config = sizes.counter, sizes.tokens, sizes.target, model.config
    decoder = model.decoder
    yield parts_of.embedding_cost(count, "source embedding", "source", model.source_embedding, m)
    yield parts_of.recurrent_cost(count, "encoder recurrence", "source", model.encoder, m)
    yield parts_of.embedding_cost(count, "target embedding", "target", model.target_embedding, n)
    yield parts_of.recurrent_cost(count, "decoder recurrence", "target", decoder.core, n)
    if isinstance(decoder, BahdanauDecoder | LuongDecoder):
        asked, wide = decoder.cross_attention, config.hidden
        yield parts_of.state_attention_cost(count, "cross-attention", asked, n, m, wide, wide)
    if isinstance(decoder, LuongDecoder):
        yield parts_of.linear_cost(count, "mix", "target", [decoder.mix], n)
    yield parts_of.linear_cost(count, "to readout", "target", [model.to_readout], n)
    yield parts_of.readout_cost(count, model.readout, config.dim, config.target_vocab, n)


@iter_cost_parts.register
def _(model: models.LanguageModel, sizes: InputSizes) -> Iterator[CostPart]:
    count, n, config = sizes.counter, sizes.tokens, model.config
    yield parts_of.embedding_cost(count, "embedding", "source", model.embedding, n)
    yield from _encoder(count, model.decoder, n)
    yield parts_of.readout_cost(count, model.readout, config.dim, config.vocab, n, "source")


@iter_cost_parts.register
def _(model: models.Classifier, sizes: InputSizes) -> Iterator[CostPart]:
    yield parts_of.embedding_cost(
        sizes.counter, "embedding", "source", model.embedding, sizes.tokens
    )
    yield from _encoder(sizes.counter, model.encoder, sizes.tokens, cached=False)
    yield from _heads(sizes.counter, model.pooler, model.head)


@iter_cost_parts.register
def _(model: models.VisionTransformer, sizes: InputSizes) -> Iterator[CostPart]:
    side, config = sizes.source or model.config.image_size, model.config
    places = (side // config.patch_size) ** 2
    pixels = config.channels * config.patch_size**2
    yield sizes.counter.part(
        "patches",
        "source",
        [model.patches, model.cls.token, model.positions],
        "B(npd)",
        {"n": places, "p": pixels, "d": config.dim},
        moved=places * (pixels + config.dim),
        activations=places * pixels,
    )
    yield from _encoder(sizes.counter, model.encoder, places + 1, cached=False)
    yield from _heads(sizes.counter, model.pre_logits, model.head)


@iter_cost_parts.register
def _(model: models.Recogniser, sizes: InputSizes) -> Iterator[CostPart]:
    part, n = parts_of.subsample_cost(sizes.counter, model.subsample, sizes.tokens)
    yield part
    yield from _encoder(sizes.counter, model.encoder, n)
    config = model.config
    yield parts_of.readout_cost(sizes.counter, model.head, config.dim, config.vocab, n, "source")


@iter_cost_parts.register
def _(model: models.SpeechEncoder, sizes: InputSizes) -> Iterator[CostPart]:
    part, n = parts_of.subsample_cost(sizes.counter, model.subsample, sizes.tokens)
    yield part
    yield from _encoder(sizes.counter, model.encoder, n, cached=False)


@iter_cost_parts.register
def _(model: models.MLP, sizes: InputSizes) -> Iterator[CostPart]:
    layers = cast("list[nn.Linear]", [*model.layers, model.head])
    yield parts_of.linear_cost(sizes.counter, "layers", "source", layers, 1)


@iter_cost_parts.register
def _(model: models.ResNet, sizes: InputSizes) -> Iterator[CostPart]:
    side, places = sizes.source or DEFAULT_IMAGE_SIDE, []
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d):
            # the way around a block starts where the block did, twice as large as its end
            start = 2 * side if ".shortcut." in name and part.stride[0] > 1 else side
            side = (start + part.stride[0] - 1) // part.stride[0]
            places.append((part, side))
    terms = (_weights_of(part) * place**2 for part, place in places)
    kept = sum(part.out_channels * place**2 for part, place in places)
    yield sizes.counter.part(
        "convolutions",
        "source",
        [model.stem, model.blocks],
        f"B({' + '.join(map(str, terms))})",
        moved=2 * kept,
        activations=2 * kept,
    )
    yield from _heads(sizes.counter, model.head)


@iter_cost_parts.register
def _(model: Encoder, sizes: InputSizes) -> Iterator[CostPart]:
    return _encoder(sizes.counter, model, sizes.tokens)


@iter_cost_parts.register
def _(model: Decoder, sizes: InputSizes) -> Iterator[CostPart]:
    return _decoder(sizes.counter, model, sizes.target, sizes.tokens)


@iter_cost_parts.register
def _(model: MultiHeadAttention, sizes: InputSizes) -> Iterator[CostPart]:
    yield parts_of.attention_cost(sizes.counter, "attention", "source", [model], sizes.tokens)


@iter_cost_parts.register
def _(model: FeedForward, sizes: InputSizes) -> Iterator[CostPart]:
    yield parts_of.feed_forward_cost(sizes.counter, "feed-forward", "source", [model], sizes.tokens)


@iter_cost_parts.register(Recurrent)
@iter_cost_parts.register(AttentiveRecurrent)
def _(model: Recurrent | AttentiveRecurrent, sizes: InputSizes) -> Iterator[CostPart]:
    yield parts_of.recurrent_cost(sizes.counter, "recurrence", "source", model, sizes.tokens)


def _encoder(
    count: CostCounter, stack: Encoder, n: int, prefix: str = "", cached: bool = True
) -> Iterator[CostPart]:
    blocks = cast(Any, list(stack.blocks))
    asks = [block.self_attention for block in blocks]
    name = f"{prefix}self-attention"
    found = parts_of.attention_cost(count, name, "source", asks, n, extra=stack.relative)
    yield found if cached and not prefix else parts_of.without_cache(found)
    alone = [block.feed_forward for block in blocks]
    yield parts_of.feed_forward_cost(count, f"{prefix}feed-forward", "source", alone, n)
    yield parts_of.norm_cost(count, f"{prefix}norms", "source", _norms(stack), n)


def _decoder(count: CostCounter, stack: Decoder, n: int, m: int) -> Iterator[CostPart]:
    blocks = cast(Any, list(stack.blocks))
    asks, across = ([getattr(b, f"{k}_attention") for b in blocks] for k in ("self", "cross"))
    name = "decoder self-attention"
    yield parts_of.attention_cost(count, name, "target", asks, n, extra=stack.relative)
    yield parts_of.attention_cost(count, "cross-attention", "target", across, n, m)
    alone = [block.feed_forward for block in blocks]
    yield parts_of.feed_forward_cost(count, "decoder feed-forward", "target", alone, n)
    yield parts_of.norm_cost(count, "decoder norms", "target", _norms(stack), n)


def _heads(count: CostCounter, *layers: nn.Linear | None) -> Iterator[CostPart]:
    some = [layer for layer in layers if layer is not None]
    if some:
        yield parts_of.linear_cost(count, "head", "source", some, 1)


def _norms(stack: nn.Module) -> list[Norm]:
    return [module for module in stack.modules() if isinstance(module, Norm)]


def _weights_of(part: nn.Conv2d) -> int:
    return part.weight.numel()
