"""What a model costs, part by part: the formula and the number side by side."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from regard import models
from regard.costs.layer_costs import CostCounter, CostPart
from regard.costs.model_parts import DEFAULT_IMAGE_SIDE, InputSizes, iter_cost_parts
from regard.errors import ConfigError
from regard.nn import Decoder

DEFAULT_TARGET = 64  # tokens that are written when no number is given
ENCODER_DECODERS = (models.Translator, models.RecurrentTranslator, Decoder)


@dataclass(frozen=True)
class Cost:
    """The parts of a model and what each costs for one forward pass; print it for a table.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=100))
    >>> found = rg.cost(model, source=10, target=5)
    >>> found["cross-attention"].multiply_adds, found["cross-attention"].formula
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
        return self._sum("parameters")

    @property
    def multiply_adds(self) -> int:
        return self._sum("multiply_adds")

    @property
    def flops(self) -> int:
        """A multiply and an add are two operations."""
        return 2 * self.multiply_adds

    @property
    def extra_target_multiply_adds(self) -> int:
        """Multiply-adds of writing another target from the same memory: all but the source's.

        decoder, cross-attention with its keys and values of the source, readout

        >>> model = rg.models.Translator(rg.models.translator_base(vocab=1))
        >>> found = rg.cost(model, source=30, target=30)
        >>> round(found.extra_target_multiply_adds / found.multiply_adds, 2)
        0.57
        """
        return sum(part.multiply_adds for part in self.parts if part.side == "target")

    def _sum(self, name: str) -> int:
        return sum(getattr(part, name) for part in self.parts)

    def __rich__(self) -> Any:
        from rich.table import Table

        table = Table(title=f"{self.model}, {self.input_sizes}", title_justify="left", box=None)
        table.add_column("part")
        table.add_column("formula")
        table.add_column("with", style="dim")
        for column in ("multiply-adds", "parameters", "bytes moved", "activations", "cache"):
            table.add_column(column, justify="right")
        for part in self.parts:
            table.add_row(part.name, part.formula, _letters(part), *_shown(part))
        total = CostPart(
            name="all",
            side="source",
            formula="",
            parameters=self.parameters,
            multiply_adds=self.multiply_adds,
            bytes_moved=self._sum("bytes_moved"),
            activation_bytes=self._sum("activation_bytes"),
            cache_bytes=self._sum("cache_bytes"),
        )
        table.add_section()
        table.add_row("all", "", "", *_shown(total))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=140, color_system=None)
        with console.capture() as caught:
            console.print(self)
        return caught.get()


def cost(
    model: nn.Module, source: int | None = None, target: int = DEFAULT_TARGET, batch: int = 1
) -> Cost:
    """What one forward pass costs, by part, from the sizes of the model alone: nothing is run.

    attention 4nd² + 2n²d,   from N queries to M keys 2Nd² + 2Md² + 2NMd,   feed-forward 8nd²,   …

    `source` counts tokens (512 if not given), log-mel frames, or the pixels of a picture's side.
    Multiply-adds are those of products of matrices, masked places too, as the kernels do them.

    >>> model = rg.nn.MultiHeadAttention(512, 8)
    >>> rg.cost(model, source=512).multiply_adds == rg.costs.layer_cost("attention", n=512, d=512)
    True
    """
    for name, size in (("source", source), ("target", target), ("batch", batch)):
        if size is not None and size < 1:
            raise ConfigError(f"{name}: needs 1 or more, got {size}")
    weight = next(model.parameters(), None)
    width = 4 if weight is None else weight.element_size()
    counter = CostCounter(batch, width, "M" if isinstance(model, ENCODER_DECODERS) else "n")
    sizes = InputSizes(source, target, counter)
    parts = tuple(iter_cost_parts(model, sizes))
    return Cost(type(model).__name__, _given(model, sizes), parts)


def _given(model: nn.Module, sizes: InputSizes) -> str:
    batch = f"batch B = {sizes.counter.batch}"
    if isinstance(model, ENCODER_DECODERS):
        return f"{batch}, source M = {sizes.tokens}, target N = {sizes.target}"
    if isinstance(model, models.VisionTransformer):
        return f"{batch}, side {sizes.source or model.config.image_size}"
    if isinstance(model, models.ResNet):
        return f"{batch}, side {sizes.source or DEFAULT_IMAGE_SIDE}"
    return batch if isinstance(model, models.MLP) else f"{batch}, n = {sizes.tokens}"


def _shown(part: CostPart) -> list[str]:
    counts = [f"{part.multiply_adds:,}" if part.multiply_adds else "", f"{part.parameters:,}"]
    return counts + [
        _bytes(part.bytes_moved),
        _bytes(part.activation_bytes),
        _bytes(part.cache_bytes),
    ]


def _letters(part: CostPart) -> str:
    return " ".join(f"{letter}={size}" for letter, size in part.sizes if letter and letter != "B")


def _bytes(size: int) -> str:
    if not size:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000  # pyright: ignore[reportAssignmentType]
    return f"{size:.3g} {unit}"
