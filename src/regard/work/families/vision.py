"""A Vision Transformer by hand: patches, class token, positions, blocks, head; a table resized."""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact.numbers import MAX_ENTRIES, format_decimal
from regard.work.families.attention import add_linear
from regard.work.families.block import (
    DEFAULT_EPS,
    BlockSetup,
    add_encoder_block,
    add_norm,
    is_pre_norm,
    start_block,
)
from regard.work.families.names import BLOCK_NAMES
from regard.work.families.registry import check_given, family
from regard.work.rules import M, Matrix
from regard.work.rules.scores import argmax_ties
from regard.work.solution import Solution, SolutionBuilder

VIT_REQUIRED = ("W_E", "cls", "pos", "W_1", "W_2", "W_H")
MAX_LAYERS = 12
CUBIC_COEFFICIENT = sympy.Rational(-3, 4)  # how far a cubic swings over, as image libraries have it


@family(
    "vit",
    given=f"image image_# W_E b_E cls pos W_H b_H W_P b_P {BLOCK_NAMES} gamma_f beta_f γ_f β_f",
)
def solve_vit(
    given: Mapping[str, Any],
    *,
    patch_size: int = 2,
    heads: int | None = None,
    layers: int = 1,
    norm: str = "pre",
    activation: str = "relu",
    eps: Any = DEFAULT_EPS,
    interpolation: str = "cubic",
) -> Solution:
    """A picture classified by hand: cut, embedded, attended, and read off at the class token.

    X_0 = [cls; patches W_E] + pos,   class = argmax softmax(encoder(X_0)_cls W_H)

    Given are image (rows of numbers; image_1, image_2 … for channels), W_E (P² C rows, one for
    each number of a patch), cls, pos, the weights of an encoder block, and W_H; W_P for a head with
    a hidden layer of tanh. A table pos for another size is resized. `layers` repeats the block;
    W_Q_L2, W_K_L2 … are layer 2's own weights.

    >>> one = [[1, 0], [0, 1]]
    >>> told = {"image": [[1, 0], [0, 1]], "W_E": [[1, 0]] * 4, "cls": [[0, 0]], "W_H": one}
    >>> solve_vit(told | {"pos": [[0, 0]] * 2, "W_1": one, "W_2": one})["T"]
    Matrix([[1, 0, 0, 1]])
    """
    check_given("vit", given, layered=True)
    names = _channels(given)
    eps = DEFAULT_EPS if eps is None else eps
    work = start_block("vit", {**given, "X": given[names[0]]}, eps, *VIT_REQUIRED)
    del work.given["X"], work.values["X"]
    z = _embed(work, names, patch_size, interpolation)
    block = BlockSetup(heads, is_pre_norm(norm), activation)
    if _whole("layers", layers) > MAX_LAYERS:
        raise WorkError(f"layers: needs at most {MAX_LAYERS} by hand, got {layers}")
    for layer in range(1, layers + 1):
        own = _own(work, f"_L{layer}")
        z = add_encoder_block(work, z, block, f"_{layer}" if layers > 1 else "", own)
    _classify(work, z, block.pre_norm)
    return work.build()


@family("position-resize", given="pos")
def solve_position_resize(
    given: Mapping[str, Any],
    *,
    old_grid: Sequence[int] = (),
    new_grid: Sequence[int] = (),
    interpolation: str = "cubic",
) -> Solution:
    """A learned table of positions for another picture size; the class token's row stays.

    pos' = [pos_cls; R pos_patches],   R = the weights of a picture resized from old to new

    >>> told = {"pos": [[9], [1], [2], [3], [4]]}
    >>> solve_position_resize(told, old_grid=[2, 2], new_grid=[1, 1])["pos_new"]
    Matrix([
    [  9],
    [5/2]])
    """
    check_given("position-resize", given)
    if given.get("pos") is None:
        raise WorkError("given: needs pos, the table of positions, got none")
    work = SolutionBuilder("position-resize", {"pos": given["pos"]})
    _resize(work, _grid("old_grid", old_grid), _grid("new_grid", new_grid), interpolation)
    return work.build()


def _own(work: SolutionBuilder, own: str) -> str:
    """The ending of a layer's own weights, if it has any; then it needs them all."""
    if not any(name.endswith(own) for name in work.given):
        return ""
    shared = [n for n in work.given if n.startswith("W_") and "L" not in n and n[2:] not in "EHP"]
    missing = [f"{name}{own}" for name in shared if f"{name}{own}" not in work.given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} too for a layer of its own, got none")
    return own


def _whole(name: str, told: Any) -> int:
    if isinstance(told, bool) or not isinstance(told, int) or told < 1:
        raise WorkError(f"{name}: needs a whole number from 1 on, got {told!r}")
    return told


def _grid(name: str, told: Any) -> tuple[int, int]:
    if not isinstance(told, list | tuple) or len(told) != 2:
        raise WorkError(f"{name}: needs two numbers, patches down and across, got {told!r}")
    down, across = _whole(name, told[0]), _whole(name, told[1])
    if down * across > MAX_ENTRIES:
        raise WorkError(f"{name}: needs at most {MAX_ENTRIES} patches, got {down}×{across}")
    return down, across


def _channels(given: Mapping[str, Any]) -> list[str]:
    """The names of the picture's channels, in their order."""
    if given.get("image") is not None:
        return ["image"]
    names = []
    while given.get(f"image_{len(names) + 1}") is not None:
        names.append(f"image_{len(names) + 1}")
    if not names:
        raise WorkError("given: needs image, or image_1, image_2 … for channels, got none")
    return names


def _embed(work: SolutionBuilder, names: list[str], patch: int, resize: str) -> str:
    """From a picture to tokens with their places."""
    cut = f"patches of {_whole('patch_size', patch)}"
    if len(names) == 1:
        t = work.add_step("T", cut, names[0], title="the patches, one a row, read row by row")
    else:
        parts = [
            work.add_step(f"T_{n}", cut, name, title=f"the patches of channel {n}")
            for n, name in enumerate(names, 1)
        ]
        t = work.add_step("T", f"join {len(parts)}", *parts, title="a patch's channels in one row")
    x = add_linear(work, "X_p", t, "W_E", title="each patch as a token")
    z = work.add_step("X_c", "stack 2", "cls", x, title="the class token before them")
    image, side = work.values[names[0]], patch
    grid = image.rows // side, image.cols // side
    pos = "pos"
    if work.values["pos"].rows != work.values[z].rows:
        pos = _resize(work, _square(work.values["pos"]), grid, resize)
    return work.add_step("X_0", "add", z, pos, title="with the position of each")


def _square(table: Matrix) -> tuple[int, int]:
    side = isqrt(table.rows - 1)
    if side * side != table.rows - 1 or not side:
        raise ShapeError(
            f"pos: needs 1 row for the class token and a square number of patches, got {table.rows}"
        )
    return side, side


def _resize(work: SolutionBuilder, old: tuple[int, int], new: tuple[int, int], kind: str) -> str:
    """The steps that bring a table of positions from one grid to another."""
    rows = work.values["pos"].rows
    if rows != 1 + old[0] * old[1]:
        raise ShapeError(f"pos: needs 1 + {old[0]} · {old[1]} rows for this grid, got {rows}")
    down, across = (
        interpolation_weights(old[0], new[0], kind),
        interpolation_weights(old[1], new[1], kind),
    )
    work.add_given("R", sympy.kronecker_product(down, across))
    work.add_step(
        "pos_cls", "rows 1 to 1", "pos", title="the class token has no place: its row stays"
    )
    work.add_step("pos_p", f"rows 2 to {rows}", "pos", title="the rows of the patches")
    says = f"resized as a picture, {old[0]}×{old[1]} to {new[0]}×{new[1]}: R weighs its neighbours"
    work.add_step("pos_r", "product", "R", "pos_p", title=says)
    if old == new:
        work.add_remark("The same size: R is the identity, and the table stays as it is.")
    return work.add_step("pos_new", "stack 2", "pos_cls", "pos_r", title="the new table")


def interpolation_weights(old: int, new: int, kind: str = "cubic") -> Matrix:
    """How much each of `old` places gives to each of `new` along one side, exactly.

    >>> interpolation_weights(2, 4, "linear")
    Matrix([
    [  1,   0],
    [3/4, 1/4],
    [1/4, 3/4],
    [  0,   1]])
    """
    if kind not in ("cubic", "linear"):
        raise WorkError(f"interpolation: needs cubic or linear, got {kind!r}")
    found = sympy.zeros(new, old)
    taps = range(-1, 3) if kind == "cubic" else range(2)
    for i in range(new):
        at = sympy.Rational(2 * i + 1, 2) * sympy.Rational(old, new) - sympy.Rational(1, 2)
        at = sympy.Max(at, 0) if kind == "linear" else at
        left = sympy.floor(at)
        for tap in taps:
            place = min(max(int(left) + tap, 0), old - 1)  # beyond the edge, the edge
            found[i, place] += _weight(abs(at - left - tap), kind)
    return M(found)


def _weight(far: Any, kind: str) -> Any:
    if kind == "linear":
        return 1 - far
    if far <= 1:
        return (CUBIC_COEFFICIENT + 2) * far**3 - (CUBIC_COEFFICIENT + 3) * far**2 + 1
    return CUBIC_COEFFICIENT * (far**3 - 5 * far**2 + 8 * far - 4)


def _classify(work: SolutionBuilder, z: str, first: bool) -> None:
    """From the class token to a class."""
    if first:
        z = add_norm(work, z, "_f")
    x = work.add_step("x", "rows 1 to 1", z, title="the class token: it has seen every patch")
    if "W_P" in work.values:
        x = add_linear(work, "y", x, "W_P", title="the hidden layer of the head")
        x = work.add_step("t", "tanh", x, title="bent")
    work_on = add_linear(work, "l", x, "W_H", title="the head: a score for each class")
    e = work.add_step("e", "exp", work_on, title="the exponentials")
    s = work.add_step("s", "sum over rows", e, title="their sum")
    p = work.add_step("p", "divide rows", e, s, title="the chance of each class")
    if work.values[p].free_symbols:
        return  # which is largest depends on the symbols
    best = argmax_ties(work.values[p])
    said = " and ".join(str(n + 1) for n in best)
    word = "class" if len(best) == 1 else "a tie of classes"
    work.add_remark(
        f"The picture is {word} {said}, with a chance of {format_decimal(work.values[p][0, best[0]], 4)}; "
        f"the largest score is that of the largest chance."
    )
