"""Table of the shapes of a solution's matrices, and the convention it is written in."""

from typing import NamedTuple

from regard.work.shapes import (
    COLUMN_CONVENTION,
    PRODUCT_SIDES,
    ROW_CONVENTION,
    Factor,
    format_shape,
    is_row_product,
    make_factor,
)
from regard.work.solution import Solution


class ShapeRow(NamedTuple):
    """One row of a shape table: a name, its shape, and the product it comes from.

    >>> ShapeRow("S", "3×3", "Q Kᵀ: 3×2 times 2×3").shape
    '3×3'
    """

    name: str
    shape: str
    origin: str


def list_shapes(solution: Solution) -> list[ShapeRow]:
    """Shape and origin of every matrix of a solution.

    >>> from regard.work.families.attention import solve_attention
    >>> list_shapes(solve_attention({"X": [[1, 0], [1, 1], [0, 2]]}))[2]
    ShapeRow(name='S', shape='3×3', origin='X Xᵀ: 3×2 times 2×3')
    """
    values = solution.values()
    rows = [ShapeRow(name, format_shape(value), "given") for name, value in solution.given.items()]
    for step in solution.steps:
        origin = step.formula.partition(" = ")[2]
        if step.rule in PRODUCT_SIDES:
            factors = zip(step.inputs, PRODUCT_SIDES[step.rule], strict=True)
            shapes = (
                make_factor(name, values[name], transposed).shape for name, transposed in factors
            )
            origin += ": " + " times ".join(f"{rows}×{cols}" for rows, cols in shapes)
        rows.append(ShapeRow(step.name, format_shape(step.value), origin))
    return rows


def detect_convention(solution: Solution) -> str:
    """Convention of a solution (tokens as rows or columns), from its products; "" if none shows.

    >>> from regard.work.families.attention import solve_attention
    >>> detect_convention(solve_attention({"X": [[1, 0], [1, 1], [0, 2]]}))
    'tokens are rows: X W, Q Kᵀ, A V'
    """
    for step in solution.steps:
        if (
            step.rule not in PRODUCT_SIDES
            or step.inputs[0] == step.inputs[1]
            and step.rule == "product"
        ):
            continue
        left, right = (
            Factor(name, 1, 1, transposed)
            for name, transposed in zip(step.inputs, PRODUCT_SIDES[step.rule], strict=True)
        )
        if is_row_product(left, right):
            return ROW_CONVENTION
        if left.name[:1] in "WU" or right.name[:1] == "A" or left.transposed:
            return COLUMN_CONVENTION
    return ""


def shapes_as_text(solution: Solution) -> str:
    """The convention and the shape table as text.

    >>> from regard.work.families.attention import solve_attention
    >>> print(shapes_as_text(solve_attention({"X": [[1, 0], [1, 1]]}, scale=1)).splitlines()[0])
    tokens are rows: X W, Q Kᵀ, A V
    """
    rows = list_shapes(solution)
    widths = max(len(row.name) for row in rows), max(len(row.shape) for row in rows)
    lines = [f"{row.name:<{widths[0]}}  {row.shape:>{widths[1]}}  {row.origin}" for row in rows]
    return "\n".join([*filter(None, [detect_convention(solution)]), *lines])
