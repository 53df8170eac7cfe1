"""What a second language costs: the source is read once, however many languages are written."""

from dataclasses import dataclass
from typing import cast

from torch import nn

from regard.costs.layer_costs import CostPart
from regard.costs.model_cost import cost
from regard.errors import ConfigError
from regard.models import RecurrentTranslator, Translator
from regard.nn import DecoderBlock


@dataclass(frozen=True)
class SharedEncoding:
    """Multiply-adds of reading (once) and of writing (once a language), with their formulas.

    together = E + K · D,   apart = K · (E + D),   K languages

    >>> SharedEncoding("", "", encoder_multiply_adds=3, decoder_multiply_adds=1, languages=2).shared_total
    5
    """

    encoder_formula: str
    decoder_formula: str
    encoder_multiply_adds: int
    decoder_multiply_adds: int
    languages: int

    @property
    def shared_total(self) -> int:
        """With one encoding for all languages."""
        return self.encoder_multiply_adds + self.languages * self.decoder_multiply_adds

    @property
    def separate_total(self) -> int:
        """With an encoding for each language."""
        return self.languages * (self.encoder_multiply_adds + self.decoder_multiply_adds)

    @property
    def saving(self) -> float:
        """The share of `apart` that is saved.

        1 - (E + K · D) / (K · (E + D))
        """
        return 1 - self.shared_total / self.separate_total

    def __str__(self) -> str:
        k = self.languages
        second = (
            100
            * self.decoder_multiply_adds
            / (self.encoder_multiply_adds + self.decoder_multiply_adds)
        )
        return (
            f"E, reading, once:           {self.encoder_multiply_adds:>14,} multiply-adds, {self.encoder_formula}\n"
            f"D, writing, each language:  {self.decoder_multiply_adds:>14,} multiply-adds, {self.decoder_formula}\n"
            f"E + {k}D = {self.shared_total:,}, not {k}(E + D) = {self.separate_total:,}: "
            f"{100 * self.saving:.0f}% less; one more language costs {second:.0f}% of the first"
        )


def shared_encoding_cost(
    model: nn.Module, source: int, target: int, languages: int
) -> SharedEncoding:
    """What it costs to write `target` tokens in each of some languages, after `source` were read.

    E = encoder + L(2Md²), the keys and values that all languages share;   D = the rest, a language

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=10))
    >>> found = shared_encoding_cost(model, source=1, target=1, languages=2)
    >>> found.encoder_multiply_adds, found.decoder_multiply_adds, found.separate_total - found.shared_total
    (114944, 115840, 114944)
    """
    if languages < 1:
        raise ConfigError(f"languages: needs 1 or more, got {languages}")
    if not isinstance(model, Translator | RecurrentTranslator):
        raise ConfigError(f"model: needs a translator, got a {type(model).__name__}")
    parts = [part for part in cost(model, source, target).parts if part.multiply_adds]
    read = [part for part in parts if part.side == "source"]
    write = [part for part in parts if part.side == "target"]
    reading, writing = (sum(part.multiply_adds for part in some) for some in (read, write))
    read_formula, write_formula = _joined(read), _joined(write)
    if isinstance(model, Translator):  # made from the source alone, so made once
        shared = model.config.decoder_layers * source * _keys_and_values(model)
        reading, writing = reading + shared, writing - shared
        read_formula += " + L(2Md²)"
        write_formula = write_formula.replace("2Nd² + 2Md² + 2NMd", "2Nd² + 2NMd")
    return SharedEncoding(read_formula, write_formula, reading, writing, languages)


def _keys_and_values(model: Translator) -> int:
    """Weights of a layer that a token of the source meets: 2d², less with fewer key heads."""
    cross = cast(DecoderBlock, model.decoder.blocks[0]).cross_attention
    return cross.to_k.weight.numel() + cross.to_v.weight.numel()


def _joined(parts: list[CostPart]) -> str:
    each = (part.formula.removeprefix("B") for part in parts if part.formula)
    return " + ".join(one[1:-1] if one.startswith("(") else one for one in each)
