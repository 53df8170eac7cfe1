"""Rules with numbers in their names: slices, concatenation, relative biases, patches."""

import re
from collections.abc import Callable

from regard.errors import ShapeError
from regard.work.rules.blocks import ARITHMETIC_MAKERS
from regard.work.rules.rule import M, Matrix, Rule, format_operand


def _slice(a: Matrix, first: int, last: int, *, rows: bool) -> Matrix:
    size, kind = (a.rows, "rows") if rows else (a.cols, "columns")
    if not 1 <= first <= last <= size:
        raise ShapeError(f"{kind}: needs some of 1 to {size}, got {first} to {last}")
    return M(a[first - 1 : last, :] if rows else a[:, first - 1 : last])


def _columns(first: str, last: str) -> Rule:
    a, b = int(first), int(last)
    return Rule(
        lambda x: _slice(x, a, b, rows=False),
        f"columns {a} to {b} of {{0}}",
        f"({{0}})_{{{{\\,\\cdot\\,,\\,{a} \\ldots {b}}}}}",
        {"rows were taken instead of columns": lambda x: _slice(x, a, b, rows=True)},
    )


def _rows(first: str, last: str) -> Rule:
    a, b = int(first), int(last)
    return Rule(
        lambda x: _slice(x, a, b, rows=True),
        f"rows {a} to {b} of {{0}}",
        f"({{0}})_{{{{{a} \\ldots {b},\\,\\cdot}}}}",
        {"columns were taken instead of rows": lambda x: _slice(x, a, b, rows=False)},
    )


def _hstack(*parts: Matrix) -> Matrix:
    if len({part.rows for part in parts}) > 1:
        sizes = " and ".join(str(part.rows) for part in parts)
        raise ShapeError(f"join: needs as many rows in each, got {sizes}")
    return M(M.hstack(*parts))


def _vstack(*parts: Matrix) -> Matrix:
    if len({part.cols for part in parts}) > 1:
        sizes = " and ".join(str(part.cols) for part in parts)
        raise ShapeError(f"stack: needs as many columns in each, got {sizes}")
    return M(M.vstack(*parts))


def _join(count: str) -> Rule:
    names = [f"{{{n}}}" for n in range(int(count))]
    text, tex = " | ".join(names), " \\mid ".join(names)
    return Rule(
        _hstack,
        f"[{text}]",
        f"[\\, {tex} \\,]",
        {"they were joined in another order": lambda *parts: _hstack(*reversed(parts))},
    )


def _stack(count: str) -> Rule:
    names = [f"{{{n}}}" for n in range(int(count))]
    text, tex = "; ".join(names), " \\\\ ".join(names)
    return Rule(
        _vstack,
        f"[{text}]",
        f"\\begin{{{{pmatrix}}}} {tex} \\end{{{{pmatrix}}}}",
        {"they were stacked in another order": lambda *parts: _vstack(*reversed(parts))},
    )


def _relative(queries: str, keys: str) -> Rule:
    n, m = int(queries), int(keys)

    def expand(row: Matrix, sign: int = 1) -> Matrix:
        if row.rows != 1 or row.cols % 2 == 0:
            raise ShapeError(
                f"rel: needs one row of an odd number of entries, the middle for distance 0, got "
                f"{row.rows}×{row.cols}"
            )
        radius = row.cols // 2
        return M(n, m, lambda i, j: row[0, max(-radius, min(radius, sign * (j - i))) + radius])

    return Rule(
        expand,
        "{0} by distance j - i",
        "\\bigl[({0})_{{j-i}}\\bigr]_{{ij}}",
        {"the distance was taken as i - j": lambda row: expand(row, -1)},
        lambda i, j, row: format_operand(expand(row)[i, j]),
    )


def patch_rows(image: Matrix, patch_size: int) -> Matrix:
    """Cut an image into square patches: one row per patch, in row-major order.

    >>> patch_rows(M([[1, 2, 3, 4], [5, 6, 7, 8]]), 2)
    Matrix([
    [1, 2, 5, 6],
    [3, 4, 7, 8]])
    """
    if patch_size < 1 or image.rows % patch_size or image.cols % patch_size:
        raise ShapeError(
            f"image: needs rows and columns in multiples of the patch size {patch_size}, got "
            f"{image.rows}×{image.cols}; try another patch, or pad with zeros"
        )
    return M(
        [
            [image[r + y, c + x] for y in range(patch_size) for x in range(patch_size)]
            for r in range(0, image.rows, patch_size)
            for c in range(0, image.cols, patch_size)
        ]
    )


def _patches(side: str) -> Rule:
    p = int(side)
    column_order = "patches were counted down the columns first"
    column_major = "each patch was read column by column"
    return Rule(
        lambda image: patch_rows(image, p),
        f"{{0}} cut into patches of {p}×{p}, one per row",
        f"\\operatorname{{{{patches}}}}_{{{{{p} \\times {p}}}}}({{0}})",
        {
            column_major: lambda image: M(
                [
                    [row[y * p + x] for x in range(p) for y in range(p)]
                    for row in patch_rows(image, p).tolist()
                ]
            ),
            column_order: lambda image: M(
                [
                    patch_rows(image, p).row(r * (image.cols // p) + c).tolist()[0]
                    for c in range(image.cols // p)
                    for r in range(image.rows // p)
                ]
            ),
        },
    )


RULE_MAKERS: dict[str, Callable[..., Rule]] = {
    r"columns (\d+) to (\d+)": _columns,
    r"rows (\d+) to (\d+)": _rows,
    r"join (\d+)": _join,
    r"stack (\d+)": _stack,
    r"relative (\d+)×(\d+)": _relative,
    r"patches of (\d+)": _patches,
    **ARITHMETIC_MAKERS,
}


def rule_from_pattern(name: str) -> Rule | None:
    """Build the rule that a name such as `columns 2 to 3` stands for; None if there is none.

    >>> rule_from_pattern("columns 2 to 3").run(M([[1, 2, 3]]))
    Matrix([[2, 3]])
    """
    for pattern, make in RULE_MAKERS.items():
        if match := re.fullmatch(pattern, name):
            return make(*match.groups())
    return None
