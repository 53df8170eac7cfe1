"""The rules of counting multiply-adds: formulas read and computed from one text."""

import re
from collections.abc import Callable
from typing import Any

import sympy

from regard.work.rules.rule import M, Matrix, Rule, format_operand, format_power

SUPERSCRIPTS = {"": 1, "²": 2, "³": 3}
COUNT_FORMULAS = (
    *("4Mk²", "2M²k", "8Mk²", "4Nk²", "2N²k", "2Nk²", "2Mk²", "2MNk", "8Nk²", "NkV", "N²k + Nk"),
    *(
        "4Nk² + N²k + Nk",
        "4nd²",
        "2n²d",
        "2nd²",
        "6nd²",
        "8nd²",
        "n²d²",
        "4d²",
        "2d²",
        "6d²",
        "8d²",
    ),
)
Term = tuple[int, tuple[tuple[str, int], ...]]


def parse_terms(text: str) -> list[Term]:
    """What a formula adds up: each term its factor and its sizes with their powers.

    >>> parse_terms("4nd² + n")
    [(4, (('n', 1), ('d', 2))), (1, (('n', 1),))]
    """
    found = []
    for term in text.split(" + "):
        factor, letters = re.fullmatch(r"(\d*)(.+)", term).groups()  # type: ignore[union-attr]
        sizes = tuple((a, SUPERSCRIPTS[b]) for a, b in re.findall(r"([A-Za-z])([²³]?)", letters))
        found.append((int(factor or 1), sizes))
    return found


def size_symbols(text: str) -> list[str]:
    """The sizes that a formula takes, in the order in which they come.

    >>> size_symbols("2MNk")
    ['M', 'N', 'k']
    """
    return list(dict.fromkeys(re.findall(r"[A-Za-z]", text)))


def _counted(text: str) -> Rule:
    terms, letters = parse_terms(text), size_symbols(text)

    def value(parts: tuple[Matrix, ...], chosen: list[Term], plain: bool = False) -> Matrix:
        size = dict(zip(letters, (part[0] for part in parts), strict=True))
        total = sympy.S.Zero
        for factor, sizes in chosen:
            total += sympy.prod([size[a] ** b for a, b in sizes], 1 if plain else factor)
        return M([[total]])

    def without(n: int) -> Callable[..., Matrix]:
        return lambda *parts: value(parts, [t for m, t in enumerate(terms) if m != n])

    def entry(i: int, j: int, *parts: Matrix) -> str:
        size = dict(zip(letters, (part[0] for part in parts), strict=True))
        return " + ".join(_put_in(term, size) for term in terms)

    slips: dict[str, Callable[..., Matrix]] = {
        "multiply and add were counted as two": lambda *parts: M(2 * value(parts, terms))
    }
    if any(factor > 1 for factor, _ in terms):
        slips["the factors in front were left out"] = lambda *parts: value(parts, terms, True)
    if len(terms) > 1:
        slips |= {f"term {n + 1} was left out": without(n) for n in range(len(terms))}
    places = {letter: f"{{{n}}}" for n, letter in enumerate(letters)}
    text_ = re.sub(r"[A-Za-z]", lambda found: places[found[0]], text)
    tex = re.sub(r"([A-Za-z])", lambda found: f"{places[found[0]]} ", text)
    tex = tex.replace(" ²", "^2 ").replace(" ³", "^3 ")
    return Rule(lambda *parts: value(parts, terms), text_, tex, slips, entry)


def _put_in(term: Term, size: dict[str, Any]) -> str:
    factor, sizes = term
    powers = [
        format_power(size[letter], {2: "²", 3: "³"}[power])
        if power > 1
        else format_operand(size[letter])
        for letter, power in sizes
    ]
    return "·".join([*([str(factor)] if factor > 1 else []), *powers])


def _again(n: Matrix, k: Matrix) -> Matrix:
    """The sum over t = 1 … N of 4tk² + 2t²k."""
    count, size = n[0], k[0]
    return M(
        [
            [
                2 * count * (count + 1) * size**2
                + count * (count + 1) * (2 * count + 1) * size / sympy.Integer(3)
            ]
        ]
    )


COST_RULES: dict[str, Rule] = {
    **{f"count {text}": _counted(text) for text in COUNT_FORMULAS},
    "count without KV cache": Rule(
        _again,
        "Σ over t = 1 … {0} of 4t{1}² + 2t²{1}",
        "\\sum_{{t=1}}^{{{0}}} (4 t {1}^2 + 2 t^2 {1})",
        {},
    ),
}
