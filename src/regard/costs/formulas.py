"""Cost formulas: the printed text is also what is evaluated."""

import re
from dataclasses import dataclass, field

from regard.errors import ConfigError

_WHOLE = re.compile(r"(?P<factor>[A-Za-z]*)\((?P<sum>[^()]+)\)|(?P<plain>[^()]+)")
_TERM = re.compile(r"([+-]?)\s*(\d*)((?:[A-Za-z][²³]?)*)")
_POWERS = {"": 1, "²": 2, "³": 3}


@dataclass(frozen=True)
class Formula:
    """A sum of products of sizes, one letter each, optionally with common factors in front.

    "L(4nd² + 2n²d)" stands for L · (4 · n · d² + 2 · n² · d)

    >>> Formula("L(4nd² + 2n²d)").value(L=1, n=2, d=3)
    96
    """

    text: str
    terms: tuple[tuple[int, str], ...] = field(init=False, repr=False)  # 4, "Lndd"

    def __post_init__(self) -> None:
        whole = _WHOLE.fullmatch(self.text)
        if whole is None:
            raise ConfigError(
                f"text: needs a sum of products, at most one bracket, got {self.text!r}"
            )
        inner, factor = whole["sum"] or whole["plain"], whole["factor"] or ""
        terms = [self._parse(term, factor) for term in re.findall(r"[+-]?\s*[^+\-]+", inner)]
        object.__setattr__(self, "terms", tuple(terms))

    def value(self, **sizes: int) -> int:
        """Evaluate the formula; every letter needs a value."""
        total = 0
        for number, letters in self.terms:
            for letter in letters:
                if letter not in sizes:
                    raise ConfigError(
                        f"sizes: needs {letter} of {self.text}, got {', '.join(sizes) or 'none'}"
                    )
                number *= sizes[letter]
            total += number
        return total

    def _parse(self, term: str, factor: str) -> tuple[int, str]:
        match = _TERM.fullmatch(term.strip())
        if match is None or not (match[2] or match[3]):
            raise ConfigError(
                f"text: needs products such as 4nd², got {term.strip()!r} in {self.text!r}"
            )
        number = int(match[2] or 1) * (-1 if match[1] == "-" else 1)
        powers = re.findall(r"([A-Za-z])([²³]?)", match[3])
        return number, factor + "".join(letter * _POWERS[power] for letter, power in powers)

    def __str__(self) -> str:
        return self.text


LAYER_FORMULAS = {
    "attention": "4nd² + 2n²d",
    "rnn": "2nd²",
    "gru": "6nd²",
    "lstm": "8nd²",
    "feed_forward": "8nd²",
}


def layer_cost(kind: str, n: int, d: int) -> int:
    """Multiply-adds of one layer of width d over n tokens.

    attention 4nd² + 2n²d,   RNN 2nd²,   GRU 6nd²,   LSTM 8nd²,   feed-forward of 4d: 8nd²

    >>> layer_cost("attention", n=512, d=512) == layer_cost("gru", n=512, d=512)
    True
    """
    if kind not in LAYER_FORMULAS:
        raise ConfigError(f"kind: needs one of {', '.join(LAYER_FORMULAS)}, got {kind!r}")
    return Formula(LAYER_FORMULAS[kind]).value(n=n, d=d)


def break_even_length(kind: str, d: int) -> int | None:
    """Sequence length at which attention costs as much as this recurrent layer; None: never.

    4nd² + 2n²d = g · 2nd²   at   n = (g - 2) · d,   g gates: 1, 3, 4

    Shorter sequences are cheaper with attention: n < d against a GRU, n < 2d against an LSTM.

    >>> [break_even_length(kind, d=512) for kind in ("gru", "lstm", "rnn")]
    [512, 1024, None]
    """
    gates = {"rnn": 1, "gru": 3, "lstm": 4}
    if kind not in gates:
        raise ConfigError(f"kind: needs one of {', '.join(gates)}, got {kind!r}")
    return (gates[kind] - 2) * d if gates[kind] > 2 else None


def generation_cost(n: int, d: int, *, cached: bool = True) -> int:
    """Multiply-adds of one self-attention layer while n tokens are generated.

    with a KV cache: Σ_t (4d² + 2td),   without: Σ_t (4td² + 2t²d),   t = 1 … n

    >>> round(generation_cost(64, 64, cached=False) / generation_cost(64, 64))
    35
    """
    if cached:
        return sum(4 * d * d + 2 * t * d for t in range(1, n + 1))
    return sum(layer_cost("attention", t, d) for t in range(1, n + 1))
