"""Cost of translating into several languages with one encoding of the source."""

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
    if not isinstance(model, Translator | RecurrentTranslator):
        raise ConfigError(f"model: needs a translator, got a {type(model).__name__}")
    parts = [part for part in cost(model, source, target).parts if part.multiply_adds]
    sides = [[part for part in parts if part.side == side] for side in ("source", "target")]
    encoder, decoder = (sum(part.multiply_adds for part in side) for side in sides)
    encoder_formula, decoder_formula = map(_join_formulas, sides)
    if isinstance(model, Translator):  # keys and values depend on the source alone
        cross = cast(DecoderBlock, model.decoder.blocks[0]).cross_attention
        weights = cross.to_k.weight.numel() + cross.to_v.weight.numel()
        shared = model.config.decoder_layers * source * weights
        encoder, decoder = encoder + shared, decoder - shared
        encoder_formula += " + L(2Md²)"
        decoder_formula = decoder_formula.replace("2Nd² + 2Md² + 2NMd", "2Nd² + 2NMd")
    return SharedEncoding(encoder_formula, decoder_formula, encoder, decoder, languages)


def _join_formulas(parts: list[CostPart]) -> str:
    formulas = (part.formula.removeprefix("B") for part in parts if part.formula)
    return " + ".join(text[1:-1] if text.startswith("(") else text for text in formulas)
