"""The rule that puts numbers in for symbols; it carries the names of the symbols in its own."""

import sympy

from regard.errors import ShapeError
from regard.work.rules.rule import M, Matrix, Rule

SUBSTITUTION_PREFIX = "substitute "


def substitution_rule(name: str) -> Rule | None:
    """The rule `substitute a, b`, which takes a matrix and a number for each symbol; else None.

    >>> a = sympy.Symbol("a", real=True)
    >>> substitution_rule("substitute a").run(M([[a, a + 1]]), M([[2]]))
    Matrix([[2, 3]])
    """
    if not name.startswith(SUBSTITUTION_PREFIX):
        return None
    symbols = name.removeprefix(SUBSTITUTION_PREFIX).split(", ")

    def run(a: Matrix, *values: Matrix) -> Matrix:
        if len(values) != len(symbols) or any(one.shape != (1, 1) for one in values):
            raise ShapeError(f"values: needs a number for each of {', '.join(symbols)}, got others")
        at = {sympy.Symbol(s, real=True): v[0] for s, v in zip(symbols, values, strict=True)}
        return M(a.subs(at, simultaneous=True))

    listed = [f"{{{n}}}" for n in range(1, len(symbols) + 1)]
    return Rule(
        run,
        f"{{0}} with the values of {', '.join(listed)}",
        f"{{0}}\\,|_{{{{{', '.join(listed)}}}}}",
        {},
    )
