"""Table of the shapes of a solution's matrices, and the convention it is written in."""

from regard.work.shapes import format_shape, product_convention, product_factors
from regard.work.solution import Solution


def list_shapes(solution: Solution) -> list[tuple[str, str, str]]:
    """Name, shape and origin of every matrix of a solution.

    >>> list_shapes(rg.work.solve({"given": {"X": [[1, 0], [1, 1], [0, 2]]}}))[2]
    ('S', '3×3', 'X Xᵀ: 3×2 times 2×3')
    """
    values = solution.values()
    rows = [(name, format_shape(value), "given") for name, value in solution.given.items()]
    for step in solution.steps:
        origin = step.formula.partition(" = ")[2]
        if factors := product_factors(step.rule, step.inputs, values):
            origin += ": " + " times ".join("×".join(map(str, x.shape)) for x in factors)
        rows.append((step.name, format_shape(step.value), origin))
    return rows


def detect_convention(solution: Solution) -> str:
    """Convention of a solution (tokens as rows or columns), from its products; "" if none shows.

    >>> detect_convention(rg.work.solve({"given": {"X": [[1, 0], [1, 1], [0, 2]]}}))
    'tokens are rows: X W, Q Kᵀ, A V'
    """
    values = solution.values()
    for step in solution.steps:
        factors = product_factors(step.rule, step.inputs, values)
        is_square = step.rule == "product" and step.inputs[0] == step.inputs[1]
        if factors and not is_square and (convention := product_convention(*factors)):
            return convention
    return ""


def shapes_as_text(solution: Solution) -> str:
    """The convention and the shape table as text."""
    rows = list_shapes(solution)
    width, size = (max(len(row[n]) for row in rows) for n in (0, 1))
    lines = [f"{name:<{width}}  {shape:>{size}}  {origin}" for name, shape, origin in rows]
    return "\n".join([*filter(None, [detect_convention(solution)]), *lines])
