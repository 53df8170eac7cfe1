"""Rules with numbers or symbols in their names: slices, concatenation, patches, substitution."""

import re
from collections.abc import Callable

import sympy

from regard.errors import ShapeError
from regard.work.rules.rule import M, Matrix, Rule, format_operand, rule


def _slice(a: Matrix, axis: str, first: int, last: int) -> Matrix:
    size = a.rows if axis == "rows" else a.cols
    if not 1 <= first <= last <= size:
        raise ShapeError(f"{axis}: needs some of 1 to {size}, got {first} to {last}")
    return M(a[first - 1 : last, :] if axis == "rows" else a[:, first - 1 : last])


def _slice_rule(axis: str, first: str, last: str) -> Rule:
    a, b = int(first), int(last)
    other = "columns" if axis == "rows" else "rows"
    indices = f"{a} … {b}, ·" if axis == "rows" else f"·, {a} … {b}"
    return rule(
        f"({{0}})_({indices})",
        {f"{other} were taken instead of {axis}": lambda x: _slice(x, other, a, b)},
        run=lambda x: _slice(x, axis, a, b),
        words=f"{axis} {a} to {b} of {{0}}",
    )


def _concatenation(verb: str, count: str) -> Rule:
    """Concatenation of `count` matrices: join them side by side, or stack them."""
    joins = verb == "join"

    def run(*parts: Matrix) -> Matrix:
        sizes = [part.rows if joins else part.cols for part in parts]
        if len(set(sizes)) > 1:
            side, got = "rows" if joins else "columns", " and ".join(map(str, sizes))
            raise ShapeError(f"{verb}: needs as many {side} in each, got {got}")
        return M((M.hstack if joins else M.vstack)(*parts))

    slots = (" | " if joins else "; ").join(f"{{{n}}}" for n in range(int(count)))
    mistake = f"they were {verb}ed in another order"
    return rule(f"[{slots}]", {mistake: lambda *parts: run(*reversed(parts))}, run=run)


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

    return rule(
        "[({0})_(j-i)]_ij",
        {"the distance was taken as i - j": lambda row: expand(row, -1)},
        run=expand,
        entry=lambda row: format_operand(expand(row)[0, 0]),
        words="{0} by distance j - i",
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

    def read_columns(image: Matrix) -> Matrix:
        """Patches of which each is read column by column."""
        rows = patch_rows(image, p).tolist()
        return M([[row[y * p + x] for x in range(p) for y in range(p)] for row in rows])

    return rule(
        f"patches_({p}×{p})({{0}})",
        {
            "each patch was read column by column": read_columns,
            "patches were counted down the columns first": lambda image: read_columns(M(image.T)),
        },
        run=lambda image: patch_rows(image, p),
        words=f"{{0}} cut into patches of {p}×{p}, one per row",
    )


def _substitution(names: str) -> Rule:
    """Substitute one number per symbol."""
    symbols = names.split(", ")

    def run(a: Matrix, *values: Matrix) -> Matrix:
        if len(values) != len(symbols) or any(value.shape != (1, 1) for value in values):
            raise ShapeError(f"values: needs one number for each of {names}, got others")
        numbers = {sympy.Symbol(s, real=True): v[0] for s, v in zip(symbols, values, strict=True)}
        return M(a.subs(numbers, simultaneous=True))

    slots = ", ".join(f"{{{n}}}" for n in range(1, len(symbols) + 1))
    return rule(f"{{0}}|_({slots})", run=run, words=f"{{0}} with the values of {slots}")


RULE_MAKERS: dict[str, Callable[..., Rule]] = {
    r"(columns|rows) (\d+) to (\d+)": _slice_rule,
    r"(join|stack) (\d+)": _concatenation,
    r"relative (\d+)×(\d+)": _relative,
    r"patches of (\d+)": _patches,
    r"substitute (.+)": _substitution,
    r"times (\d+)": lambda n: rule(f"{n} · {{0}}", {f"the {n} was left out": "{0}"}),
    r"plus (\d+)": lambda n: rule(f"{{0}} + {n}", {f"the {n} was left out": "{0}"}),
}


def rule_from_pattern(name: str) -> Rule | None:
    """Build the rule of a name such as `columns 2 to 3`; None if there is none.

    >>> rule_from_pattern("columns 2 to 3").run(M([[1, 2, 3]]))
    Matrix([[2, 3]])
    """
    for pattern, make in RULE_MAKERS.items():
        if match := re.fullmatch(pattern, name):
            return make(*match.groups())
    return None
