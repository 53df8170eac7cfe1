"""Shapes told the way a teacher tells them: what does not meet, and which convention would."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from regard.errors import ShapeError
from regard.work.rules import Matrix, get_rule

if TYPE_CHECKING:
    from regard.work.solution import Solution  # which tells its errors in the words of this file

# what stands left and right in a product, and whether it is turned round
_SIDES = {
    "product": (False, False),
    "product with transpose": (False, True),
    "transpose times": (True, False),
}
ROW_CONVENTION = "tokens are rows: X W, Q Kᵀ, A V"
COLUMN_CONVENTION = "tokens are columns: W X, Kᵀ Q, V A"


class Factor(NamedTuple):
    """A matrix in a product: its name, its size, and whether it is transposed.

    >>> Factor("K", 3, 2, True).told, Factor("K", 3, 2, True).shape
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
    >>> size(sympy.zeros(2, 3))
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
    >>> print(not_met("H", "product", ("A", "V"), values, ShapeError("")))
    H = A V: needs as many rows in V as A has columns, 5, got A 6×5 and V 3×6; \
try V A (tokens are columns: W X, Kᵀ Q, V A)
    """
    step = f"{name} = {get_rule(rule_name).text.format(*inputs)}"
    told = " and ".join(f"{one} {format_shape(values[one])}" for one in dict.fromkeys(inputs))
    if str(error).partition(":")[0] in inputs:
        return error  # it names what it is about, and knows better
    if rule_name not in _SIDES:
        said = str(error).partition(", got")[0].partition("needs ")[2] or "sizes that meet"
        return ShapeError(f"{step}: needs {said}, got {told}")
    left, right = (
        _factor(one, values[one], turned)
        for one, turned in zip(inputs, _SIDES[rule_name], strict=True)
    )
    hints = suggest_products(left, right)
    hint = f"; try {hints[0]}" if hints else ""
    return ShapeError(
        f"{step}: needs as many {_side(right, 0)} in {right.name} as {left.name} has "
        f"{_side(left, 1)}, {left.shape[1]}, got {told}{hint}"
    )


def _factor(name: str, value: Matrix, turned: bool) -> Factor:
    return Factor(name, value.rows, value.cols, turned)


def _side(factor: Factor, which: int) -> str:
    return ("rows", "columns")[which ^ factor.transposed]


def suggest_products(left: Factor, right: Factor) -> list[str]:
    """The products of the same two matrices whose sizes do meet, the likeliest first.

    >>> meeting(Factor("X", 3, 4), Factor("W", 2, 4))
    ['X Wᵀ, as W is written for the other convention']
    """
    found = []
    for first, second in ((right, left), (left, _turned(right)), (_turned(left), right)):
        if first.shape[1] != second.shape[0]:
            continue
        product = f"{first.label} {second.label}"
        if first is right:
            found.append(
                f"{product} ({COLUMN_CONVENTION if _is_rows(left, right) else ROW_CONVENTION})"
            )
        else:
            turned = second if first is left else first
            found.append(f"{product}, as {turned.name} is written for the other convention")
    return found


def _turned(factor: Factor) -> Factor:
    return factor._replace(turned=not factor.transposed)


def _is_rows(left: Factor, right: Factor) -> bool:
    """Whether a product is of the convention where tokens are rows."""
    if left.name[:1] in "WU" or right.name[:1] == "A" or left.transposed:
        return False
    return (
        right.name[:1] in "WU" or right.transposed or left.name[:1] == "A" or left.name[:1] == "s"
    )


class ShapeRow(NamedTuple):
    """One row of a table of shapes: a name, its size, and the sizes that it comes from.

    >>> Sized("S", "3×3", "Q Kᵀ: 3×2 times 2×3").size
    '3×3'
    """

    name: str
    shape: str
    origin: str


def list_shapes(solution: "Solution") -> list[ShapeRow]:
    """The shape of every matrix of a solution, and of which sizes it was made.

    >>> from regard.work import attention
    >>> shapes_of(attention({"X": [[1, 0], [1, 1], [0, 2]]}))[2]
    Sized(name='S', size='3×3', made='X Xᵀ: 3×2 times 2×3')
    """
    values = solution.values()
    found = [ShapeRow(name, format_shape(value), "given") for name, value in solution.given.items()]
    for step in solution.steps:
        made = step.formula.partition(" = ")[2]
        if step.rule in _SIDES:
            sides = zip(step.inputs, _SIDES[step.rule], strict=True)
            shapes = (_factor(one, values[one], turned).shape for one, turned in sides)
            made += ": " + " times ".join(f"{rows}×{cols}" for rows, cols in shapes)
        found.append(ShapeRow(step.name, format_shape(step.value), made))
    return found


def detect_convention(solution: "Solution") -> str:
    """Which way of writing a solution uses, from its products; empty where it shows in none.

    >>> from regard.work import attention
    >>> convention_of(attention({"X": [[1, 0], [1, 1], [0, 2]]}))
    'tokens are rows: X W, Q Kᵀ, A V'
    """
    for step in solution.steps:
        if step.rule not in _SIDES or step.inputs[0] == step.inputs[1] and step.rule == "product":
            continue
        left, right = (
            Factor(one, 1, 1, turned)
            for one, turned in zip(step.inputs, _SIDES[step.rule], strict=True)
        )
        if _is_rows(left, right):
            return ROW_CONVENTION
        if left.name[:1] in "WU" or right.name[:1] == "A" or left.transposed:
            return COLUMN_CONVENTION
    return ""


def shapes_as_text(solution: "Solution") -> str:
    """The convention and a table of shapes, for a terminal.

    >>> from regard.work import attention
    >>> print(shapes_as_text(attention({"X": [[1, 0], [1, 1]]}, scale=1)).splitlines()[0])
    tokens are rows: X W, Q Kᵀ, A V
    """
    rows = list_shapes(solution)
    wide = max(len(row.name) for row in rows), max(len(row.shape) for row in rows)
    lines = [f"{row.name:<{wide[0]}}  {row.shape:>{wide[1]}}  {row.origin}" for row in rows]
    return "\n".join([*filter(None, [detect_convention(solution)]), *lines])
