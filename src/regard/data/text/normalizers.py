"""Text normalisation, applied to training text and to input alike."""

import re
import unicodedata
from collections.abc import Callable, Sequence

from regard.errors import ConfigError

UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts whose words are not spaced
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−⁃", "-"),
        **dict.fromkeys("‘’‚‛′`´ʼ", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        "⁄": "/",  # NFKC writes ½ with it
        **dict.fromkeys("\u00ad\u200b\u200e\u200f\u2060\ufeff", None),  # invisible
    }
)


def _typography(text: str) -> str:
    """NFKC with ASCII quotes and dashes, single spaces, stripped."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    return " ".join(text.split())


def _leading_space(text: str) -> str:
    """The text after a space, so that its first word is the same token as within a text."""
    return re.sub(rf"\A(?=\S)(?![{UNSPACED}])", " ", text)


NORMALIZERS: dict[str, Callable[[str], str]] = {
    "typography": _typography,
    "lower": str.lower,
    "leading_space": _leading_space,
}


def normalize_text(text: str, steps: Sequence[str]) -> str:
    """Apply the named normalizers in order.

    "typography" is NFKC with ASCII quotes and dashes and single spaces; "lower" is lower case;
    "leading_space" puts a space before the first word, unless its script has none.

    >>> normalize_text("3:05\u202fPM – ５ km", ("typography", "lower"))
    '3:05 pm - 5 km'
    """
    for step in steps:
        text = NORMALIZERS[step](text)
    return text


def check_normalizers(steps: Sequence[str]) -> tuple[str, ...]:
    """Raise a ConfigError for an unknown normalizer."""
    if isinstance(steps, str) or not all(step in NORMALIZERS for step in steps):
        raise ConfigError(f"normalizers: needs some of {', '.join(NORMALIZERS)}, got {steps!r}")
    return tuple(steps)
