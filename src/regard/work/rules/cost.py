"""Rules that count multiply-adds, each generated from its formula."""

import re

import sympy

from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule

SUPERSCRIPTS = {"": 1, "²": 2, "³": 3}
COUNT_FORMULAS = (
    *("4Mk²", "2M²k", "8Mk²", "4Nk²", "2N²k", "2Nk²", "2Mk²", "2MNk", "8Nk²", "NkV", "N²k + Nk"),
    *("4Nk² + N²k + Nk", "4nd²", "2n²d", "2nd²", "6nd²", "8nd²", "n²d²"),
    *("4d²", "2d²", "6d²", "8d²"),
)
Term = tuple[int, tuple[tuple[str, int], ...]]


def parse_terms(text: str) -> list[Term]:
    """Parse a sum of products of sizes: the factor and (size, exponent) pairs of each term.

    >>> parse_terms("4nd² + n")
    [(4, (('n', 1), ('d', 2))), (1, (('n', 1),))]
    """
    parsed = []
    for term in text.split(" + "):
        factor, letters = re.fullmatch(r"(\d*)(.+)", term).groups()  # type: ignore[union-attr]
        sizes = tuple((a, SUPERSCRIPTS[b]) for a, b in re.findall(r"([A-Za-z])([²³]?)", letters))
        parsed.append((int(factor or 1), sizes))
    return parsed


def size_symbols(text: str) -> list[str]:
    """Sizes in a formula, in order of appearance.

    >>> size_symbols("2MNk")
    ['M', 'N', 'k']
    """
    return list(dict.fromkeys(re.findall(r"[A-Za-z]", text)))


def _count_rule(text: str) -> Rule:
    terms, letters = parse_terms(text), size_symbols(text)

    def count(selected: list[Term], unit_factors: bool = False) -> MatrixFunction:
        def run(*inputs: Matrix) -> Matrix:
            size = dict(zip(letters, (part[0] for part in inputs), strict=True))
            total = sympy.S.Zero
            for factor, sizes in selected:
                total += sympy.prod([size[a] ** b for a, b in sizes], 1 if unit_factors else factor)
            return M([[total]])

        return run

    mistakes = {"multiply and add were counted as two": count(terms + terms)}
    if any(factor > 1 for factor, _ in terms):
        mistakes["the factors in front were left out"] = count(terms, unit_factors=True)
    if len(terms) > 1:
        for n in range(len(terms)):
            mistakes[f"term {n + 1} was left out"] = count(terms[:n] + terms[n + 1 :])
    slots = {letter: f"{{{n}}}" for n, letter in enumerate(letters)}
    template = re.sub(r"[A-Za-z]", lambda letter: slots[letter[0]], text)
    tex = re.sub(r"[A-Za-z]", lambda letter: f"{slots[letter[0]]} ", text)
    tex = tex.replace(" ²", "^2 ").replace(" ³", "^3 ")
    entry = " + ".join(_term_entry(term, letters) for term in terms)
    return Rule(count(terms), template, mistakes, entry, tex)


def _term_entry(term: Term, letters: list[str]) -> str:
    factor, sizes = term
    powers = [
        f"{{{letters.index(letter)}{('', ':²', ':³')[power - 1]}}}" for letter, power in sizes
    ]
    return "·".join([*([str(factor)] if factor > 1 else []), *powers])


def _count_without_cache(n: Matrix, k: Matrix) -> Matrix:
    """The sum over t = 1 … N of 4tk² + 2t²k."""
    count, size = n[0], k[0]
    projections = 2 * count * (count + 1) * size**2
    pairs = count * (count + 1) * (2 * count + 1) * size / sympy.Integer(3)
    return M([[projections + pairs]])


COST_RULES: dict[str, Rule] = {
    **{f"count {text}": _count_rule(text) for text in COUNT_FORMULAS},
    "count without KV cache": Rule(
        _count_without_cache,
        "Σ over t = 1 … {0} of 4t{1}² + 2t²{1}",
        latex="\\sum_{{t=1}}^{{{0}}} (4 t {1}^2 + 2 t^2 {1})",
    ),
}
