"""Cost of a model, part by part, with formulas and numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard import models
from regard.costs.layer_costs import CostCounter, CostPart
from regard.costs.model_parts import iter_cost_parts
from regard.errors import ConfigError
from regard.nn import Decoder
from regard.tables import format_table

DEFAULT_SOURCE, DEFAULT_TARGET, DEFAULT_IMAGE_SIDE = 512, 64, 28  # tokens, tokens, pixels
COLUMNS = {
    "multiply-adds": "multiply_adds",
    "parameters": "parameters",
    "bytes moved": "bytes_moved",
    "activations": "activation_bytes",
    "cache": "cache_bytes",
}
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
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.parts)
        raise ConfigError(f"name: needs one of {known}, got {name!r}")

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def multiply_adds(self) -> int:
        return sum(part.multiply_adds for part in self.parts)

    @property
    def flops(self) -> int:
        """Floating-point operations: two per multiply-add."""
        return 2 * self.multiply_adds

    @property
    def extra_target_multiply_adds(self) -> int:
        """Multiply-adds of decoding another target from the same encoding.

        decoder, cross-attention with its keys and values of the source, readout
        """
        return sum(part.multiply_adds for part in self.parts if part.side == "target")

    def __rich__(self) -> Any:
        from rich.table import Table

        table = Table(title=f"{self.model}, {self.input_sizes}", title_justify="left", box=None)
        table.add_column("part")
        table.add_column("formula")
        table.add_column("with", style="dim")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        counts = [[getattr(part, name) for name in COLUMNS.values()] for part in self.parts]
        for part, numbers in zip(self.parts, counts, strict=True):
            letters = " ".join(f"{letter}={size}" for letter, size in part.sizes if letter != "B")
            table.add_row(part.name, part.formula, letters, *_format_counts(numbers))
        table.add_section()
        totals = map(sum, zip(*counts, strict=True))
        table.add_row("all", "", "", *_format_counts(totals))
        return table

    def __str__(self) -> str:
        return format_table(self, width=140)


def cost(
    model: nn.Module, source: int | None = None, target: int = DEFAULT_TARGET, batch: int = 1
) -> Cost:
    """Cost of one forward pass by part, from the sizes of the model; nothing is run.

    attention 4nd² + 2n²d,   from N queries to M keys 2Nd² + 2Md² + 2NMd,   feed-forward 8nd²,   …

    Multiply-adds are those of matrix products, including masked entries, as the kernels compute
    them.

    Args:
        model: A model or layer of regard.
        source: Tokens (512 by default), log-mel frames, or the side of an image in pixels.
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
    weight = next(model.parameters(), None)
    element_size = 4 if weight is None else weight.element_size()
    if isinstance(model, models.VisionTransformer):
        source, shape = source or model.config.image_size, "side {}"
    elif isinstance(model, models.ResNet):
        source, shape = source or DEFAULT_IMAGE_SIDE, "side {}"
    else:
        source, shape = source or DEFAULT_SOURCE, "n = {}"
    letter = "n"
    if isinstance(model, ENCODER_DECODERS):
        letter, shape = "M", f"source M = {{}}, target N = {target}"
    inputs = f"batch B = {batch}"
    if not isinstance(model, models.MLP):
        inputs += ", " + shape.format(source)
    counter = CostCounter(batch, element_size, source, target, letter)
    return Cost(type(model).__name__, inputs, tuple(iter_cost_parts(model, counter)))


def _format_counts(counts: Iterable[int]) -> list[str]:
    multiply_adds, parameters, *sizes = counts
    products = f"{multiply_adds:,}" if multiply_adds else ""
    return [products, f"{parameters:,}", *map(_format_bytes, sizes)]


def _format_bytes(size: int) -> str:
    if not size:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000  # pyright: ignore[reportAssignmentType]
    return f"{size:.3g} {unit}"
