"""The rule that substitutes numbers for symbols; its name lists the symbols."""

import sympy

from regard.errors import ShapeError
from regard.work.rules.rule import M, Matrix, Rule

SUBSTITUTION_PREFIX = "substitute "


def substitution_rule(name: str) -> Rule | None:
    """Build the rule `substitute a, b`: a matrix and one number per symbol; None for other names.

    >>> a = sympy.Symbol("a", real=True)
    >>> substitution_rule("substitute a").run(M([[a, a + 1]]), M([[2]]))
    Matrix([[2, 3]])
    """
    if not name.startswith(SUBSTITUTION_PREFIX):
        return None
    symbols = name.removeprefix(SUBSTITUTION_PREFIX).split(", ")

    def run(a: Matrix, *values: Matrix) -> Matrix:
        if len(values) != len(symbols) or any(value.shape != (1, 1) for value in values):
            raise ShapeError(
                f"values: needs one number for each of {', '.join(symbols)}, got others"
            )
        substitutions = {
            sympy.Symbol(s, real=True): v[0] for s, v in zip(symbols, values, strict=True)
        }
        return M(a.subs(substitutions, simultaneous=True))

    slots = [f"{{{n}}}" for n in range(1, len(symbols) + 1)]
    return Rule(
        run,
        f"{{0}} with the values of {', '.join(slots)}",
        f"{{0}}\\,|_{{{{{', '.join(slots)}}}}}",
        {},
    )
