"""The parts of each model class in the order they run: one registered function per class."""

from collections.abc import Iterator
from functools import singledispatch
from typing import Any, cast

from torch import nn

from regard import models
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


@singledispatch
def iter_cost_parts(model: nn.Module, counter: CostCounter) -> Iterator[CostPart]:
    """The parts of a model or layer of regard, in the order they run."""
    raise ConfigError(
        f"model: needs a model of regard or transformers, got {type(model).__name__}; "
        "try a whole model"
    )


@iter_cost_parts.register
def _(model: models.Translator, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.embedding("source embedding", model.source_embedding)
    yield from _stack(model.encoder, counter, "encoder ", cached=False)
    counter.side = "target"
    yield counter.embedding("target embedding", model.target_embedding)
    yield from _stack(model.decoder, counter)
    yield counter.readout(model.readout)
    if model.phrase_table is not None:
        yield counter.part("phrase table", [model.phrase_table])


@iter_cost_parts.register
def _(model: models.RecurrentTranslator, counter: CostCounter) -> Iterator[CostPart]:
    decoder = model.decoder
    yield counter.embedding("source embedding", model.source_embedding)
    yield counter.recurrent("encoder recurrence", model.encoder)
    counter.side = "target"
    yield counter.embedding("target embedding", model.target_embedding)
    yield counter.recurrent("decoder recurrence", decoder.core)
    if isinstance(decoder, BahdanauDecoder | LuongDecoder):
        yield counter.state_attention(decoder.cross_attention, model.config.hidden)
    if isinstance(decoder, LuongDecoder):
        yield counter.linear("mix", [decoder.mix])
    yield counter.linear("to readout", [model.to_readout])
    yield counter.readout(model.readout)


@iter_cost_parts.register
def _(model: models.LanguageModel, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.embedding("embedding", model.embedding)
    yield from _stack(model.decoder, counter)
    yield counter.readout(model.readout)
    if model.ngrams is not None:  # looked up, like an embedding
        yield counter.part("n-grams", [model.ngrams])


@iter_cost_parts.register
def _(model: models.NgramModel, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.part("tables", [model])


@iter_cost_parts.register
def _(model: models.Classifier, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.embedding("embedding", model.embedding)
    yield from _stack(model.encoder, counter, cached=False)
    if model.config.pooling != "none":
        yield from _pooled(counter, "head", model.pooler, model.head)
    elif model.head is not None:
        yield counter.linear("head", [model.head])
    if model.ngrams is not None:  # looked up, like an embedding
        yield counter.part("n-grams", [model.ngrams, model.mix])


@iter_cost_parts.register
def _(model: models.VisionTransformer, counter: CostCounter) -> Iterator[CostPart]:
    config = model.config
    patches = (counter.lengths["source"] // config.patch_size) ** 2
    pixels = config.channels * config.patch_size**2
    yield counter.part(
        "patches",
        [model.patches, model.cls.token, model.positions],
        formula="B(npd)",
        sizes={"n": patches, "p": pixels, "d": config.dim},
        moved=patches * (pixels + config.dim),
        activations=patches * pixels,
    )
    counter.lengths["source"] = patches + 1
    yield from _stack(model.encoder, counter, cached=False)
    yield from _pooled(counter, "head", model.pre_logits, model.head)


@iter_cost_parts.register
def _(model: models.Recogniser, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.subsample(model.subsample)
    yield from _stack(model.encoder, counter)
    yield counter.readout(model.head)


@iter_cost_parts.register
def _(model: models.SpeechEncoder, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.subsample(model.subsample)
    yield from _stack(model.encoder, counter, cached=False)


@iter_cost_parts.register
def _(model: models.MLP, counter: CostCounter) -> Iterator[CostPart]:
    return _pooled(counter, "layers", *cast("list[nn.Linear]", [*model.layers, model.head]))


@iter_cost_parts.register
def _(model: models.ResNet, counter: CostCounter) -> Iterator[CostPart]:
    return _residual(model, counter, counter.lengths["source"], counter.lengths["source"])


@iter_cost_parts.register
def _(model: models.WordRecogniser, counter: CostCounter) -> Iterator[CostPart]:
    return _residual(model, counter, counter.lengths["source"], model.config.n_mels)


def _residual(
    model: models.ResNet | models.WordRecogniser, counter: CostCounter, height: int, width: int
) -> Iterator[CostPart]:
    terms, outputs = [], 0
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            # a strided shortcut has the input of its block, and the size of the convolutions before
            stride = 1 if ".shortcut." in name else layer.stride[0]
            height, width = ((side + stride - 1) // stride for side in (height, width))
            terms.append(str(layer.weight.numel() * height * width))
            outputs += layer.out_channels * height * width
    yield counter.part(
        "convolutions",
        [model.stem, model.blocks],
        formula=f"B({' + '.join(terms)})",
        moved=2 * outputs,
        activations=2 * outputs,
    )
    yield from _pooled(counter, "head", model.head)


@iter_cost_parts.register
def _(model: MultiHeadAttention, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.attention("attention", [model])


@iter_cost_parts.register
def _(model: FeedForward, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.feed_forward("feed-forward", [model])


@iter_cost_parts.register
def _(model: Recurrent | AttentiveRecurrent, counter: CostCounter) -> Iterator[CostPart]:
    yield counter.recurrent("recurrence", model)


@iter_cost_parts.register
def _stack(
    stack: Encoder | Decoder, counter: CostCounter, prefix: str = "", *, cached: bool = True
) -> Iterator[CostPart]:
    if isinstance(stack, Decoder):
        counter.side, prefix = "target", "decoder "
    blocks = cast(Any, stack.blocks)
    name, layers = f"{prefix}self-attention", [block.self_attention for block in blocks]
    yield counter.attention(name, layers, relative=stack.relative, cached=cached)
    if isinstance(stack, Decoder):
        layers = [block.cross_attention for block in blocks]
        yield counter.attention("cross-attention", layers, cross=True)
    layers = [block.feed_forward for block in blocks]
    yield counter.feed_forward(f"{prefix}feed-forward", layers)
    inside = {id(norm) for block in blocks for norm in block.self_attention.modules()}  # of q, k
    norms = [x for x in stack.modules() if isinstance(x, Norm) and id(x) not in inside]
    yield counter.norms(f"{prefix}norms", norms)


def _pooled(counter: CostCounter, name: str, *layers: nn.Linear | None) -> Iterator[CostPart]:
    """Linear layers that run once per sequence."""
    counter.lengths["source"] = 1
    if any(layers):
        yield counter.linear(name, layers)
