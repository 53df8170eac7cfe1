"""Shape errors that name the matrices and suggest the product that would work."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from regard.errors import ShapeError
from regard.work.rules import Matrix, get_rule

# rule: whether the left and the right factor are transposed
PRODUCT_SIDES = {
    "product": (False, False),
    "product with transpose": (False, True),
    "transpose times": (True, False),
}
ROW_CONVENTION = "tokens are rows: X W, Q Kᵀ, A V"
COLUMN_CONVENTION = "tokens are columns: W X, Kᵀ Q, V A"


class Factor(NamedTuple):
    """A factor of a matrix product: its name, stored size, and whether it is transposed."""

    name: str
    rows: int
    cols: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Shape in the product."""
        return (self.cols, self.rows) if self.transposed else (self.rows, self.cols)

    @property
    def label(self) -> str:
        """Name in the product, with ᵀ if transposed."""
        return f"{self.name}ᵀ" if self.transposed else self.name


def product_factors(
    rule_name: str, inputs: Sequence[str], values: Mapping[str, Matrix]
) -> list[Factor]:
    """The two factors of a product; none for other rules."""
    sides = PRODUCT_SIDES.get(rule_name, ())
    return [
        Factor(name, values[name].rows, values[name].cols, transposed)
        for name, transposed in zip(inputs, sides, strict=bool(sides))
    ]


def format_shape(value: Matrix) -> str:
    """Shape of a matrix as text."""
    return f"{value.rows}×{value.cols}"


def shape_error(
    name: str,
    rule_name: str,
    inputs: tuple[str, ...],
    values: Mapping[str, Matrix],
    error: ShapeError,
) -> ShapeError:
    """The ShapeError of a step, with the names and shapes of its inputs and a suggestion.

    >>> import sympy
    >>> values = {"A": sympy.zeros(6, 5), "V": sympy.zeros(3, 6)}
    >>> print(shape_error("H", "product", ("A", "V"), values, ShapeError("")))
    H = A V: needs as many rows in V as A has columns, 5, got A 6×5 and V 3×6; \
try V A (tokens are columns: W X, Kᵀ Q, V A)
    """
    if str(error).partition(":")[0] in inputs:
        return error  # it already names an input
    step = f"{name} = {get_rule(rule_name).text.format(*inputs)}"
    shapes = " and ".join(f"{key} {format_shape(values[key])}" for key in dict.fromkeys(inputs))
    if rule_name not in PRODUCT_SIDES:
        rule = str(error).partition(", got")[0].partition("needs ")[2] or "matching shapes"
        return ShapeError(f"{step}: needs {rule}, got {shapes}")
    left, right = product_factors(rule_name, inputs, values)
    suggestion = _missing(left, right, values) or suggest_product(left, right)
    hint = f"; try {suggestion}" if suggestion else ""
    return ShapeError(
        f"{step}: needs as many {_side(right, 0)} in {right.name} as {left.name} has "
        f"{_side(left, 1)}, {left.shape[1]}, got {shapes}{hint}"
    )


def _missing(left: Factor, right: Factor, values: Mapping[str, Matrix]) -> str:
    """What is more likely than the other convention: W_Q without W_K, inputs of another size."""
    if re.fullmatch(r"x_\d+", right.name):
        return f"x with {left.shape[1]} rows, one column per time step"
    if re.fullmatch(r"x_\d+", left.name):
        return f"x with {right.shape[0]} columns, one row per time step"
    for projected, weight in ((left, "W_K"), (right, "W_Q")):
        other = right if projected is left else left
        is_projected = projected.name in ("Q", "K") and other.name in ("X", "Y")
        if is_projected and f"W_{projected.name}" in values and weight not in values:
            return f"{weight} as well as W_{projected.name}"
    return ""


def _side(factor: Factor, which: int) -> str:
    return ("rows", "columns")[which ^ factor.transposed]


def suggest_product(left: Factor, right: Factor) -> str:
    """The most likely product of the same two matrices whose shapes match; "" if there is none."""
    if right.shape[1] == left.shape[0]:
        is_row = product_convention(left, right) == ROW_CONVENTION
        convention = COLUMN_CONVENTION if is_row else ROW_CONVENTION
        return f"{right.label} {left.label} ({convention})"
    for first, second, other in ((left, _transpose(right), right), (_transpose(left), right, left)):
        if first.shape[1] == second.shape[0]:
            product = f"{first.label} {second.label}"
            return f"{product}, as {other.name} is written for the other convention"
    return ""


def _transpose(factor: Factor) -> Factor:
    return factor._replace(transposed=not factor.transposed)


def product_convention(left: Factor, right: Factor) -> str:
    """Convention that a product follows (tokens as rows or as columns); "" if it does not show."""
    if left.name[:1] in "WU" or right.name[:1] == "A" or left.transposed:
        return COLUMN_CONVENTION
    if right.name[:1] in "WU" or right.transposed or left.name[:1] in "As":
        return ROW_CONVENTION
    return ""
