"""The parts of each model class and their sizes: one registered function per class."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, cast

from torch import nn

from regard import models
from regard.costs import layer_costs
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

DEFAULT_TOKENS, DEFAULT_IMAGE_SIDE = 512, 28


@dataclass(frozen=True)
class InputSizes:
    """Sizes of the input: tokens, frames or image side of the source, and target tokens."""

    source: int | None
    target: int
    counter: CostCounter

    @property
    def tokens(self) -> int:
        return DEFAULT_TOKENS if self.source is None else self.source


@singledispatch
def iter_cost_parts(model: nn.Module, sizes: InputSizes) -> Iterator[CostPart]:
    """The parts of a model or layer of regard, in the order they run."""
    raise ConfigError(
        f"model: needs a model of regard, got {type(model).__name__}; try rg.models.from_pretrained"
    )


@iter_cost_parts.register
def _(model: models.Translator, sizes: InputSizes) -> Iterator[CostPart]:
    counter, m, n, config = sizes.counter, sizes.tokens, sizes.target, model.config
    yield layer_costs.embedding_cost(
        counter, "source embedding", "source", model.source_embedding, m
    )
    yield from _encoder(counter, model.encoder, m, "encoder ")
    yield layer_costs.embedding_cost(
        counter, "target embedding", "target", model.target_embedding, n
    )
    yield from _decoder(counter, model.decoder, n, m)
    yield layer_costs.readout_cost(counter, model.readout, config.dim, config.target_vocab, n)


@iter_cost_parts.register
def _(model: models.RecurrentTranslator, sizes: InputSizes) -> Iterator[CostPart]:
    counter, m, n, config = sizes.counter, sizes.tokens, sizes.target, model.config
    decoder = model.decoder
    yield layer_costs.embedding_cost(
        counter, "source embedding", "source", model.source_embedding, m
    )
    yield layer_costs.recurrent_cost(counter, "encoder recurrence", "source", model.encoder, m)
    yield layer_costs.embedding_cost(
        counter, "target embedding", "target", model.target_embedding, n
    )
    yield layer_costs.recurrent_cost(counter, "decoder recurrence", "target", decoder.core, n)
    if isinstance(decoder, BahdanauDecoder | LuongDecoder):
        layer, width = decoder.cross_attention, config.hidden
        yield layer_costs.state_attention_cost(
            counter, "cross-attention", layer, n, m, width, width
        )
    if isinstance(decoder, LuongDecoder):
        yield layer_costs.linear_cost(counter, "mix", "target", [decoder.mix], n)
    yield layer_costs.linear_cost(counter, "to readout", "target", [model.to_readout], n)
    yield layer_costs.readout_cost(counter, model.readout, config.dim, config.target_vocab, n)


@iter_cost_parts.register
def _(model: models.LanguageModel, sizes: InputSizes) -> Iterator[CostPart]:
    counter, n, config = sizes.counter, sizes.tokens, model.config
    yield layer_costs.embedding_cost(counter, "embedding", "source", model.embedding, n)
    yield from _encoder(counter, model.decoder, n)
    yield layer_costs.readout_cost(counter, model.readout, config.dim, config.vocab, n, "source")


@iter_cost_parts.register
def _(model: models.Classifier, sizes: InputSizes) -> Iterator[CostPart]:
    yield layer_costs.embedding_cost(
        sizes.counter, "embedding", "source", model.embedding, sizes.tokens
    )
    yield from _encoder(sizes.counter, model.encoder, sizes.tokens, cached=False)
    yield from _heads(sizes.counter, model.pooler, model.head)


@iter_cost_parts.register
def _(model: models.VisionTransformer, sizes: InputSizes) -> Iterator[CostPart]:
    side, config = sizes.source or model.config.image_size, model.config
    patches = (side // config.patch_size) ** 2
    pixels = config.channels * config.patch_size**2
    yield sizes.counter.part(
        "patches",
        "source",
        [model.patches, model.cls.token, model.positions],
        "B(npd)",
        {"n": patches, "p": pixels, "d": config.dim},
        moved=patches * (pixels + config.dim),
        activations=patches * pixels,
    )
    yield from _encoder(sizes.counter, model.encoder, patches + 1, cached=False)
    yield from _heads(sizes.counter, model.pre_logits, model.head)


@iter_cost_parts.register
def _(model: models.Recogniser, sizes: InputSizes) -> Iterator[CostPart]:
    part, n = layer_costs.subsample_cost(sizes.counter, model.subsample, sizes.tokens)
    yield part
    yield from _encoder(sizes.counter, model.encoder, n)
    config = model.config
    yield layer_costs.readout_cost(sizes.counter, model.head, config.dim, config.vocab, n, "source")


@iter_cost_parts.register
def _(model: models.SpeechEncoder, sizes: InputSizes) -> Iterator[CostPart]:
    part, n = layer_costs.subsample_cost(sizes.counter, model.subsample, sizes.tokens)
    yield part
    yield from _encoder(sizes.counter, model.encoder, n, cached=False)


@iter_cost_parts.register
def _(model: models.MLP, sizes: InputSizes) -> Iterator[CostPart]:
    layers = cast("list[nn.Linear]", [*model.layers, model.head])
    yield layer_costs.linear_cost(sizes.counter, "layers", "source", layers, 1)


@iter_cost_parts.register
def _(model: models.ResNet, sizes: InputSizes) -> Iterator[CostPart]:
    side, layers = sizes.source or DEFAULT_IMAGE_SIDE, []
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d):
            # a strided shortcut has the input of its block, twice the size of the output
            start = 2 * side if ".shortcut." in name and part.stride[0] > 1 else side
            side = (start + part.stride[0] - 1) // part.stride[0]
            layers.append((part, side))
    terms = (part.weight.numel() * size**2 for part, size in layers)
    outputs = sum(part.out_channels * size**2 for part, size in layers)
    yield sizes.counter.part(
        "convolutions",
        "source",
        [model.stem, model.blocks],
        f"B({' + '.join(map(str, terms))})",
        moved=2 * outputs,
        activations=2 * outputs,
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
    yield layer_costs.attention_cost(sizes.counter, "attention", "source", [model], sizes.tokens)


@iter_cost_parts.register
def _(model: FeedForward, sizes: InputSizes) -> Iterator[CostPart]:
    yield layer_costs.feed_forward_cost(
        sizes.counter, "feed-forward", "source", [model], sizes.tokens
    )


@iter_cost_parts.register(Recurrent)
@iter_cost_parts.register(AttentiveRecurrent)
def _(model: Recurrent | AttentiveRecurrent, sizes: InputSizes) -> Iterator[CostPart]:
    yield layer_costs.recurrent_cost(sizes.counter, "recurrence", "source", model, sizes.tokens)


def _encoder(
    counter: CostCounter, stack: Encoder, n: int, prefix: str = "", cached: bool = True
) -> Iterator[CostPart]:
    blocks = cast(Any, list(stack.blocks))
    attentions = [block.self_attention for block in blocks]
    name = f"{prefix}self-attention"
    part = layer_costs.attention_cost(counter, name, "source", attentions, n, extra=stack.relative)
    yield part if cached and not prefix else replace(part, cache_bytes=0)
    feed_forwards = [block.feed_forward for block in blocks]
    yield layer_costs.feed_forward_cost(
        counter, f"{prefix}feed-forward", "source", feed_forwards, n
    )
    yield layer_costs.norm_cost(counter, f"{prefix}norms", "source", _norms(stack), n)


def _decoder(counter: CostCounter, stack: Decoder, n: int, m: int) -> Iterator[CostPart]:
    blocks = cast(Any, list(stack.blocks))
    attentions, crosses = (
        [getattr(b, f"{k}_attention") for b in blocks] for k in ("self", "cross")
    )
    name = "decoder self-attention"
    yield layer_costs.attention_cost(counter, name, "target", attentions, n, extra=stack.relative)
    yield layer_costs.attention_cost(counter, "cross-attention", "target", crosses, n, m)
    feed_forwards = [block.feed_forward for block in blocks]
    yield layer_costs.feed_forward_cost(counter, "decoder feed-forward", "target", feed_forwards, n)
    yield layer_costs.norm_cost(counter, "decoder norms", "target", _norms(stack), n)


def _heads(counter: CostCounter, *layers: nn.Linear | None) -> Iterator[CostPart]:
    present = [layer for layer in layers if layer is not None]
    if present:
        yield layer_costs.linear_cost(counter, "head", "source", present, 1)


def _norms(stack: nn.Module) -> list[Norm]:
    return [module for module in stack.modules() if isinstance(module, Norm)]
