"""Cost of a model, part by part, and of translation into several languages."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, cast

from torch import nn

from regard import models
from regard.costs.layer_costs import CostCounter, CostPart
from regard.costs.model_parts import iter_cost_parts
from regard.costs.traced_cost import input_size, is_transformers_model, trace_cost_parts
from regard.errors import ConfigError
from regard.models.config import CONFIGS, StackConfig, check_implemented
from regard.nn import Decoder, DecoderBlock
from regard.tables import format_table, html_table

DEFAULT_SOURCE, DEFAULT_TARGET, DEFAULT_IMAGE_SIDE = 512, 64, 28  # tokens, tokens, pixels
COLUMNS = {
    "multiply-adds": "multiply_adds",
    "parameters": "parameters",
    "bytes moved": "bytes_moved",
    "activations": "activation_bytes",
    "cache": "cache_bytes",
}
COUNTED = (  # options of a stack whose products are counted
    "layers dim heads kv_heads head_dim ffn_dim activation gated norm norm_first final_norm "
    "eps bias qkv_bias out_bias scale softcap sinks rope_theta rotate_half skip relative_bias "
    "buckets max_distance output_norm parallel rope_dim rope_scaling qk_norm mixer"
)
ENCODER_DECODERS = (models.Translator, models.RecurrentTranslator, Decoder)


@dataclass(frozen=True)
class Cost:
    """Cost of one forward pass by part; prints as a table.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=100))
    >>> part = rg.cost(model, source=10, target=5)["cross-attention"]
    >>> part.multiply_adds, part.formula
    (258560, 'BL(2Nd² + 2Md² + 2NMd)')
    """

    model: str
    input_sizes: str
    parts: tuple[CostPart, ...]

    def __getitem__(self, name: str) -> CostPart:
        known = {part.name: part for part in self.parts}
        if name not in known:
            raise ConfigError(f"name: needs one of {', '.join(known)}, got {name!r}")
        return known[name]

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: those of a dense model of the same products.

        parameters · (1 - chosen / experts) of each mixture are idle
        """
        return self.parameters - sum(part.idle_parameters for part in self.parts)

    @property
    def multiply_adds(self) -> int:
        return sum(part.multiply_adds for part in self.parts)

    @property
    def flops(self) -> int:
        """Floating-point operations: two per multiply-add."""
        return 2 * self.multiply_adds

    def __rich__(self) -> Any:
        from rich.table import Table

        table = Table("part", "formula", title_justify="left", box=None)
        table.title = f"{self.model}, {self.input_sizes}"
        table.add_column("with", style="dim")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        rows = list(self._rows())
        for row in rows:
            table.add_row(*row, end_section=row is rows[-2])
        return table

    def _rows(self) -> Iterator[tuple[str, ...]]:
        counts = [[getattr(part, name) for name in COLUMNS.values()] for part in self.parts]
        for part, numbers in zip(self.parts, counts, strict=True):
            letters = " ".join(f"{letter}={size}" for letter, size in part.sizes if letter != "B")
            yield part.name, part.formula, letters, *_format_counts(numbers)
        yield "all", "", "", *_format_counts(map(sum, zip(*counts, strict=True)))

    def _repr_html_(self) -> str:
        title = f"<p>{escape(self.model)}, {escape(self.input_sizes)}</p>"
        return title + html_table(("part", "formula", "with", *COLUMNS), self._rows())

    def __str__(self) -> str:
        return format_table(self, width=140)


def cost(
    model: nn.Module, source: int | None = None, target: int = DEFAULT_TARGET, batch: int = 1
) -> Cost:
    """Cost of one forward pass by part, from the sizes of the model; nothing is computed.

    attention 4nd² + 2n²d,   from N queries to M keys 2Nd² + 2Md² + 2NMd,   feed-forward 8nd²,   …

    Multiply-adds are those of matrix products, including masked entries, as the kernels compute
    them. A transformers model runs once without numbers, on the meta device: its matrix products
    are counted by shape, and what autograd saves are its activations.

    Args:
        model: A model or layer of regard, or a model of transformers.
        source: Tokens (512 by default, or all positions), log-mel frames, audio samples, or the
            side of an image in pixels.
        target: Target tokens of an encoder-decoder.
        batch: Batch size.

    >>> from regard.costs import layer_cost
    >>> model = rg.nn.MultiHeadAttention(512, 8)
    >>> rg.cost(model, source=512).multiply_adds == layer_cost("attention", n=512, d=512)
    True
    """
    for name, size in (("source", source), ("target", target), ("batch", batch)):
        if size is not None and size < 1:
            raise ConfigError(f"{name}: needs 1 or more, got {size}")
    if is_transformers_model(model):
        return _traced_cost(model, source, target, batch)
    if type(model) in CONFIGS and isinstance(model.config, StackConfig):
        config, common = CONFIGS[type(model)], StackConfig.__dataclass_fields__
        names = config.__dataclass_fields__.keys() - common  # known to the parts of this model
        check_implemented(model.config, " ".join([COUNTED, *names]), "to be counted")
    element_size = next((p.element_size() for p in model.parameters()), 4)
    letter, shape, default = "n", "n = {}", DEFAULT_SOURCE
    if isinstance(model, models.VisionTransformer | models.ResNet):
        shape, default = "side {}", int(getattr(model.config, "image_size", DEFAULT_IMAGE_SIDE))
    elif isinstance(model, ENCODER_DECODERS):
        letter, shape = "M", f"source M = {{}}, target N = {target}"
    source = source or default
    counter = CostCounter(batch, element_size, source, target, letter)
    shape = "" if isinstance(model, models.MLP) else f", {shape.format(source)}"
    parts = tuple(iter_cost_parts(model, counter))
    return Cost(type(model).__name__, f"batch B = {batch}{shape}", parts)


def _traced_cost(model: Any, source: int | None, target: int, batch: int) -> Cost:
    shape, default = input_size(model)
    positions = getattr(model.config, "max_position_embeddings", None) or DEFAULT_SOURCE
    source = source or default or min(DEFAULT_SOURCE, positions)
    if model.config.is_encoder_decoder:
        shape = f"source M = {{}}, target N = {target}"
    parts = trace_cost_parts(model, source, target, batch)
    sizes = f"batch B = {batch}, {shape.format(source)}"
    return Cost(type(model).__name__, sizes, tuple(parts))


@dataclass(frozen=True)
class SharedEncoding:
    """Multiply-adds of the encoder E (once) and the decoder D (per language), with formulas.

    shared_total = E + K · D,   separate_total = K · (E + D),   K languages

    >>> SharedEncoding("", "", 3, 1, languages=2).shared_total
    5
    """

    encoder_formula: str
    decoder_formula: str
    encoder_multiply_adds: int
    decoder_multiply_adds: int
    languages: int

    @property
    def shared_total(self) -> int:
        """Multiply-adds with one encoding for all languages."""
        return self.encoder_multiply_adds + self.languages * self.decoder_multiply_adds

    @property
    def separate_total(self) -> int:
        """Multiply-adds with one encoding per language."""
        return self.languages * (self.encoder_multiply_adds + self.decoder_multiply_adds)

    @property
    def saving(self) -> float:
        """Share of `separate_total` that is saved.

        1 - (E + K · D) / (K · (E + D))
        """
        return 1 - self.shared_total / self.separate_total

    def __str__(self) -> str:
        k, encoder, decoder = self.languages, self.encoder_multiply_adds, self.decoder_multiply_adds
        return (
            f"E, encoder, once:          {encoder:>14,} multiply-adds, {self.encoder_formula}\n"
            f"D, decoder, per language:  {decoder:>14,} multiply-adds, {self.decoder_formula}\n"
            f"E + {k}D = {self.shared_total:,}, not {k}(E + D) = {self.separate_total:,}: "
            f"{100 * self.saving:.0f}% less; each further language costs "
            f"{100 * decoder / (encoder + decoder):.0f}% of the first"
        )


def shared_encoding_cost(
    model: nn.Module, source: int, target: int, languages: int
) -> SharedEncoding:
    """Cost of decoding `target` tokens in several languages from one encoding of `source` tokens.

    E = encoder + L(2Md²), the keys and values that all languages share;   D = the rest

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=10))
    >>> cost = shared_encoding_cost(model, source=1, target=1, languages=2)
    >>> cost.encoder_multiply_adds, cost.decoder_multiply_adds
    (114944, 115840)
    """
    if languages < 1:
        raise ConfigError(f"languages: needs 1 or more, got {languages}")
    if not isinstance(model, models.Translator | models.RecurrentTranslator):
        raise ConfigError(f"model: needs a translator, got a {type(model).__name__}")
    parts = [part for part in cost(model, source, target).parts if part.multiply_adds]
    sides = [[part for part in parts if part.side == side] for side in ("source", "target")]
    encoder, decoder = (sum(part.multiply_adds for part in side) for side in sides)
    formulas = [[part.formula.removeprefix("B") for part in side] for side in sides]
    encoder_formula, decoder_formula = (
        " + ".join(x[1:-1] if x.startswith("(") else x for x in side) for side in formulas
    )
    if isinstance(model, models.Translator):  # keys and values depend on the source alone
        cross = cast(DecoderBlock, model.decoder.blocks[0]).cross_attention
        weights = cross.to_k.weight.numel() + cross.to_v.weight.numel()
        shared = model.config.decoder_layers * source * weights
        encoder, decoder = encoder + shared, decoder - shared
        encoder_formula += " + L(2Md²)"
        decoder_formula = decoder_formula.replace("2Nd² + 2Md² + 2NMd", "2Nd² + 2NMd")
    return SharedEncoding(encoder_formula, decoder_formula, encoder, decoder, languages)


def _format_counts(counts: Iterable[int]) -> list[str]:
    multiply_adds, parameters, *sizes = counts

    def format_bytes(size: int) -> str:
        power = min((len(str(size)) - 1) // 3, 4)
        return f"{size / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}" if size else ""

    products = f"{multiply_adds:,}" if multiply_adds else ""
    return [products, f"{parameters:,}", *map(format_bytes, sizes)]
