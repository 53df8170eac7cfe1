"""Cost formulas: the printed text is also what is evaluated."""

import re
from collections import Counter
from dataclasses import dataclass, field

from regard.errors import ConfigError, check_choice

_WHOLE = re.compile(r"(?P<factor>[A-Za-z]*)\((?P<sum>[^()]+)\)|(?P<plain>[^()]+)")
_TERM = re.compile(r"([+-]?)\s*(\d*)((?:[A-Za-z][²³]?)*)")
_POWERS = {"": 1, "²": 2, "³": 3}
SUPERSCRIPTS = {n: text for text, n in _POWERS.items()}


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
    check_choice("kind", kind, LAYER_FORMULAS)
    return Formula(LAYER_FORMULAS[kind]).value(n=n, d=d)


def break_even_length(kind: str, d: int) -> int | None:
    """Sequence length at which attention costs as much as this recurrent layer; None: never.

    4nd² + 2n²d = g · 2nd²   at   n = (g - 2) · d,   g gates: 1, 3, 4

    Shorter sequences are cheaper with attention: n < d against a GRU, n < 2d against an LSTM.

    >>> [break_even_length(kind, d=512) for kind in ("gru", "lstm", "rnn")]
    [512, 1024, None]
    """
    gates = {"rnn": 1, "gru": 3, "lstm": 4}
    check_choice("kind", kind, gates)
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


@dataclass(frozen=True)
class Product:
    """`count` products of (rows, inner) and (inner, columns) matrices."""

    count: int
    rows: int
    inner: int
    columns: int

    @property
    def multiply_adds(self) -> int:
        return self.count * self.rows * self.inner * self.columns


class FormulaWriter:
    """Writes matrix products as a formula of sizes; `spare` names widths beside the known ones."""

    def __init__(self, batch: int, lengths: dict[str, int], widths: dict[str, int], spare: str):
        self.batch, self.lengths, self.widths, self.spare = batch, lengths, widths, iter(spare)

    def write(self, products: Counter[Product], layers: int) -> tuple[str, dict[str, int]]:
        """The formula, and the value of each letter; empty without products."""
        if not products:
            return "", {}
        terms: Counter[tuple[str, ...]] = Counter()
        for product, times in products.items():
            number, letters = self._term(product)
            terms[letters] += number * times
        front = "B" if all("B" in letters for letters in terms) else ""
        shared = layers if layers > 1 and not any(x % layers for x in terms.values()) else 1
        front += "L" if shared > 1 else ""
        texts = []
        for letters, number in sorted(terms.items(), key=lambda term: len(term[0]) == 0):
            powers = Counter(x for x in letters if x not in front)
            product = "".join(f"{x}{SUPERSCRIPTS[n]}" for x, n in powers.items())
            number //= shared
            texts.append(product if number == 1 and product else f"{number}{product}")
        text = " + ".join(texts)
        sizes = {"B": self.batch, "L": shared, **self.lengths, **self.widths}
        text = f"{front}({text})" if front else text
        return text, {letter: size for letter, size in sizes.items() if letter in text}

    def _term(self, product: Product) -> tuple[int, tuple[str, ...]]:
        """A number and the letters that it is multiplied by."""
        sizes = [product.rows, product.inner, product.columns]
        if product.count == 1 and sizes[0] % self.batch == 0:  # a linear layer over all tokens
            return self._write([sizes[0] // self.batch], sizes[1:])
        if product.count % self.batch:
            return product.multiply_adds, ()
        per_sequence = product.count // self.batch
        width = per_sequence * sizes.pop(self._width_axis(per_sequence, sizes))
        return self._write(sizes, [width])

    def _width_axis(self, heads: int, sizes: list[int]) -> int:
        """The axis that is the width of a head; the others are lengths."""
        known = [i for i, size in enumerate(sizes) if heads * size in self.widths.values()]
        free = [i for i, size in enumerate(sizes) if size not in self.lengths.values()]
        return next((i for i in known if i in free), (free or known or [1])[0])

    def _write(self, lengths: list[int], widths: list[int]) -> tuple[int, tuple[str, ...]]:
        """B · lengths · widths; a size without a letter becomes part of the number."""
        number, letters = 1, ["B"]
        for sizes, known in ((lengths, self.lengths), (widths, self.widths)):
            for size in sizes:
                letter = next((name for name, x in known.items() if x == size), None)
                if letter is None and known is self.widths and size > 1:
                    letter = next(self.spare, None)
                    self.widths |= {} if letter is None else {letter: size}
                if letter is None:
                    number *= size
                else:
                    letters.append(letter)
        order = ["B", *self.lengths, *self.widths]
        return number, tuple(sorted(letters, key=order.index))
