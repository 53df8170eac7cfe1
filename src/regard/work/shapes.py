"""Shape errors that name the matrices and suggest the product that would work."""

from collections.abc import Mapping
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
    """A factor of a matrix product: its name, stored size, and whether it is transposed.

    >>> Factor("K", 3, 2, True).label, Factor("K", 3, 2, True).shape
    ('Kᵀ', (2, 3))
    """

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


def format_shape(value: Matrix) -> str:
    """Shape of a matrix as text.

    >>> import sympy
    >>> format_shape(sympy.zeros(2, 3))
    '2×3'
    """
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
    step = f"{name} = {get_rule(rule_name).text.format(*inputs)}"
    shapes = " and ".join(
        f"{input_name} {format_shape(values[input_name])}" for input_name in dict.fromkeys(inputs)
    )
    if str(error).partition(":")[0] in inputs:
        return error  # it already names an input
    if rule_name not in PRODUCT_SIDES:
        rule = str(error).partition(", got")[0].partition("needs ")[2] or "matching shapes"
        return ShapeError(f"{step}: needs {rule}, got {shapes}")
    left, right = (
        make_factor(input_name, values[input_name], transposed)
        for input_name, transposed in zip(inputs, PRODUCT_SIDES[rule_name], strict=True)
    )
    hints = suggest_products(left, right)
    hint = f"; try {hints[0]}" if hints else ""
    return ShapeError(
        f"{step}: needs as many {_side(right, 0)} in {right.name} as {left.name} has "
        f"{_side(left, 1)}, {left.shape[1]}, got {shapes}{hint}"
    )


def make_factor(name: str, value: Matrix, transposed: bool) -> Factor:
    """Factor with the shape of a matrix."""
    return Factor(name, value.rows, value.cols, transposed)


def _side(factor: Factor, which: int) -> str:
    return ("rows", "columns")[which ^ factor.transposed]


def suggest_products(left: Factor, right: Factor) -> list[str]:
    """Products of the same two matrices whose shapes match, the most likely first.

    >>> suggest_products(Factor("X", 3, 4), Factor("W", 2, 4))
    ['X Wᵀ, as W is written for the other convention']
    """
    products = []
    for first, second in ((right, left), (left, _transpose(right)), (_transpose(left), right)):
        if first.shape[1] != second.shape[0]:
            continue
        product = f"{first.label} {second.label}"
        if first is right:
            is_row = is_row_product(left, right)
            products.append(f"{product} ({COLUMN_CONVENTION if is_row else ROW_CONVENTION})")
        else:
            other = second if first is left else first
            products.append(f"{product}, as {other.name} is written for the other convention")
    return products


def _transpose(factor: Factor) -> Factor:
    return factor._replace(transposed=not factor.transposed)


def is_row_product(left: Factor, right: Factor) -> bool:
    """Whether a product follows the convention in which tokens are rows."""
    if left.name[:1] in "WU" or right.name[:1] == "A" or left.transposed:
        return False
    return (
        right.name[:1] in "WU" or right.transposed or left.name[:1] == "A" or left.name[:1] == "s"
    )
