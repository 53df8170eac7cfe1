"""Rules that count multiply-adds, each generated from its formula."""

import re

import sympy

from regard.work.rules.rule import M, Matrix, Rule, rule

COUNT_FORMULAS = (
    *("4Mk²", "2M²k", "8Mk²", "4Nk²", "2N²k", "2Nk²", "2Mk²", "2MNk", "8Nk²", "NkV", "N²k + Nk"),
    *("4Nk² + N²k + Nk", "4nd²", "2n²d", "2nd²", "6nd²", "8nd²", "n²d²"),
    *("4d²", "2d²", "6d²", "8d²"),
)


def size_symbols(text: str) -> list[str]:
    """Sizes in a formula, in order of appearance.

    >>> size_symbols("2MNk")
    ['M', 'N', 'k']
    """
    return list(dict.fromkeys(re.findall(r"[A-Za-z]", text)))


def _count_rule(text: str) -> Rule:
    letters = size_symbols(text)
    formula = re.sub("[A-Za-z]", lambda letter: f"{{{letters.index(letter[0])}}}", text)
    terms = formula.split(" + ")
    bare = [re.sub(r"^\d+", "", term) for term in terms]
    mistakes = {"multiply and add were counted as two": " + ".join(terms + terms)}
    if bare != terms:
        mistakes["the factors in front were left out"] = " + ".join(bare)
    if len(terms) > 1:
        for n in range(len(terms)):
            mistakes[f"term {n + 1} was left out"] = " + ".join(terms[:n] + terms[n + 1 :])
    return rule(formula, mistakes)


def _count_without_cache(n: Matrix, k: Matrix) -> Matrix:
    """The sum over t = 1 … N of 4tk² + 2t²k."""
    count, size = n[0], k[0]
    projections = 2 * count * (count + 1) * size**2
    pairs = count * (count + 1) * (2 * count + 1) * size / sympy.Integer(3)
    return M([[projections + pairs]])


COST_RULES: dict[str, Rule] = {
    **{f"count {text}": _count_rule(text) for text in COUNT_FORMULAS},
    "count without KV cache": rule(
        "Σ_(t=1)^{0} (4t{1}² + 2t²{1})",
        run=_count_without_cache,
        words="Σ over t = 1 … {0} of 4t{1}² + 2t²{1}",
    ),
}
