"""Shapes told the way a teacher tells them: what does not meet, and which convention would."""

from collections.abc import Mapping
from typing import NamedTuple

from regard.errors import ShapeError
from regard.work.rules import Matrix, get_rule

# what stands left and right in a product, and whether it is turned round
PRODUCT_SIDES = {
    "product": (False, False),
    "product with transpose": (False, True),
    "transpose times": (True, False),
}
ROW_CONVENTION = "tokens are rows: X W, Q Kᵀ, A V"
COLUMN_CONVENTION = "tokens are columns: W X, Kᵀ Q, V A"


class Factor(NamedTuple):
    """A matrix in a product: its name, its size, and whether it is transposed.

    >>> Factor("K", 3, 2, True).label, Factor("K", 3, 2, True).shape
    ('Kᵀ', (2, 3))
    """

    name: str
    rows: int
    cols: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Its size as it stands in the product."""
        return (self.cols, self.rows) if self.transposed else (self.rows, self.cols)

    @property
    def label(self) -> str:
        """Its name as it stands in the product."""
        return f"{self.name}ᵀ" if self.transposed else self.name


def format_shape(value: Matrix) -> str:
    """The shape of a matrix in words.

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
    """The error of a step whose sizes do not meet, told by the names of what it takes.

    >>> import sympy
    >>> values = {"A": sympy.zeros(6, 5), "V": sympy.zeros(3, 6)}
    >>> print(shape_error("H", "product", ("A", "V"), values, ShapeError("")))
    H = A V: needs as many rows in V as A has columns, 5, got A 6×5 and V 3×6; \
try V A (tokens are columns: W X, Kᵀ Q, V A)
    """
    step = f"{name} = {get_rule(rule_name).text.format(*inputs)}"
    told = " and ".join(f"{one} {format_shape(values[one])}" for one in dict.fromkeys(inputs))
    if str(error).partition(":")[0] in inputs:
        return error  # it names what it is about, and knows better
    if rule_name not in PRODUCT_SIDES:
        said = str(error).partition(", got")[0].partition("needs ")[2] or "sizes that meet"
        return ShapeError(f"{step}: needs {said}, got {told}")
    left, right = (
        make_factor(one, values[one], turned)
        for one, turned in zip(inputs, PRODUCT_SIDES[rule_name], strict=True)
    )
    hints = suggest_products(left, right)
    hint = f"; try {hints[0]}" if hints else ""
    return ShapeError(
        f"{step}: needs as many {_side(right, 0)} in {right.name} as {left.name} has "
        f"{_side(left, 1)}, {left.shape[1]}, got {told}{hint}"
    )


def make_factor(name: str, value: Matrix, turned: bool) -> Factor:
    return Factor(name, value.rows, value.cols, turned)


def _side(factor: Factor, which: int) -> str:
    return ("rows", "columns")[which ^ factor.transposed]


def suggest_products(left: Factor, right: Factor) -> list[str]:
    """The products of the same two matrices whose sizes do meet, the likeliest first.

    >>> suggest_products(Factor("X", 3, 4), Factor("W", 2, 4))
    ['X Wᵀ, as W is written for the other convention']
    """
    found = []
    for first, second in ((right, left), (left, _turned(right)), (_turned(left), right)):
        if first.shape[1] != second.shape[0]:
            continue
        product = f"{first.label} {second.label}"
        if first is right:
            found.append(
                f"{product} ({COLUMN_CONVENTION if is_row_product(left, right) else ROW_CONVENTION})"
            )
        else:
            turned = second if first is left else first
            found.append(f"{product}, as {turned.name} is written for the other convention")
    return found


def _turned(factor: Factor) -> Factor:
    return factor._replace(transposed=not factor.transposed)


def is_row_product(left: Factor, right: Factor) -> bool:
    """Whether a product is of the convention where tokens are rows."""
    if left.name[:1] in "WU" or right.name[:1] == "A" or left.transposed:
        return False
    return (
        right.name[:1] in "WU" or right.transposed or left.name[:1] == "A" or left.name[:1] == "s"
    )
