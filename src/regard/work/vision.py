"""A Vision Transformer by hand: patches, class token, positions, blocks, head; a table resized."""

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.attention import linear
from regard.work.block import EPS, Block, encode, is_first, norm, start
from regard.work.given import need_known
from regard.work.numbers import MOST, decimal
from regard.work.rules import M, Matrix
from regard.work.rules.scores import largest
from regard.work.solution import Solution, Working

NEEDS = ("W_E", "cls", "pos", "W_1", "W_2", "W_H")
DEEPEST = 12
CUBIC = sympy.Rational(-3, 4)  # how far a cubic swings over, as image libraries have it


def vit(
    given: Mapping[str, Any],
    *,
    patch: int = 2,
    heads: int | None = None,
    layers: int = 1,
    norm: str = "pre",
    activation: str = "relu",
    eps: Any = EPS,
    resize: str = "cubic",
) -> Solution:
    """A picture classified by hand: cut, embedded, attended, and read off at the class token.

    X_0 = [cls; patches W_E] + pos,   class = argmax softmax(encoder(X_0)_cls W_H)

    Given are image (rows of numbers; image_1, image_2 … for channels), W_E (P² C rows, one for
    each number of a patch), cls, pos, the weights of an encoder block, and W_H; W_P for a head with
    a hidden layer of tanh. A table pos for another size is resized. `layers` repeats the block;
    W_Q_L2, W_K_L2 … are layer 2's own weights.

    >>> one = [[1, 0], [0, 1]]
    >>> told = {"image": [[1, 0], [0, 1]], "W_E": [[1, 0]] * 4, "cls": [[0, 0]], "W_H": one}
    >>> vit(told | {"pos": [[0, 0]] * 2, "W_1": one, "W_2": one})["T"]
    Matrix([[1, 0, 0, 1]])
    """
    need_known("vit", given)
    names = _channels(given)
    eps = EPS if eps is None else eps
    work = start("vit", {**given, "X": given[names[0]]}, eps, *NEEDS)
    del work.given["X"], work.values["X"]
    z = _embed(work, names, patch, resize)
    block = Block(heads, is_first(norm), activation)
    if _whole("layers", layers) > DEEPEST:
        raise WorkError(f"layers: needs at most {DEEPEST} by hand, got {layers}")
    for layer in range(1, layers + 1):
        own = _own(work, f"_L{layer}")
        z = encode(work, z, block, f"_{layer}" if layers > 1 else "", own)
    _classify(work, z, block.first)
    return work.done()


def resized(
    given: Mapping[str, Any],
    *,
    old: Sequence[int] = (),
    new: Sequence[int] = (),
    resize: str = "cubic",
) -> Solution:
    """A learned table of positions for another picture size; the class token's row stays.

    pos' = [pos_cls; R pos_patches],   R = the weights of a picture resized from old to new

    >>> told = {"pos": [[9], [1], [2], [3], [4]]}
    >>> resized(told, old=[2, 2], new=[1, 1])["pos_new"]
    Matrix([
    [  9],
    [5/2]])
    """
    need_known("resize", given)
    if given.get("pos") is None:
        raise WorkError("given: needs pos, the table of positions, got none")
    work = Working("resize", {"pos": given["pos"]})
    _resize(work, _grid("old", old), _grid("new", new), resize)
    return work.done()


def _own(work: Working, own: str) -> str:
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
    if down * across > MOST:
        raise WorkError(f"{name}: needs at most {MOST} patches, got {down}×{across}")
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


def _embed(work: Working, names: list[str], patch: int, resize: str) -> str:
    """From a picture to tokens with their places."""
    cut = f"patches of {_whole('patch', patch)}"
    if len(names) == 1:
        t = work.step("T", cut, names[0], says="the patches, one a row, read row by row")
    else:
        parts = [
            work.step(f"T_{n}", cut, name, says=f"the patches of channel {n}")
            for n, name in enumerate(names, 1)
        ]
        t = work.step("T", f"join {len(parts)}", *parts, says="a patch's channels in one row")
    x = linear(work, "X_p", t, "W_E", says="each patch as a token")
    z = work.step("X_c", "stack 2", "cls", x, says="the class token before them")
    image, side = work.values[names[0]], patch
    grid = image.rows // side, image.cols // side
    pos = "pos"
    if work.values["pos"].rows != work.values[z].rows:
        pos = _resize(work, _square(work.values["pos"]), grid, resize)
    return work.step("X_0", "add", z, pos, says="with the position of each")


def _square(table: Matrix) -> tuple[int, int]:
    side = isqrt(table.rows - 1)
    if side * side != table.rows - 1 or not side:
        raise ShapeError(
            f"pos: needs 1 row for the class token and a square number of patches, got {table.rows}"
        )
    return side, side


def _resize(work: Working, old: tuple[int, int], new: tuple[int, int], kind: str) -> str:
    """The steps that bring a table of positions from one grid to another."""
    rows = work.values["pos"].rows
    if rows != 1 + old[0] * old[1]:
        raise ShapeError(f"pos: needs 1 + {old[0]} · {old[1]} rows for this grid, got {rows}")
    down, across = weights(old[0], new[0], kind), weights(old[1], new[1], kind)
    work.give("R", sympy.kronecker_product(down, across))
    work.step("pos_cls", "rows 1 to 1", "pos", says="the class token has no place: its row stays")
    work.step("pos_p", f"rows 2 to {rows}", "pos", says="the rows of the patches")
    says = f"resized as a picture, {old[0]}×{old[1]} to {new[0]}×{new[1]}: R weighs its neighbours"
    work.step("pos_r", "product", "R", "pos_p", says=says)
    if old == new:
        work.remark("The same size: R is the identity, and the table stays as it is.")
    return work.step("pos_new", "stack 2", "pos_cls", "pos_r", says="the new table")


def weights(old: int, new: int, kind: str = "cubic") -> Matrix:
    """How much each of `old` places gives to each of `new` along one side, exactly.

    >>> weights(2, 4, "linear")
    Matrix([
    [  1,   0],
    [3/4, 1/4],
    [1/4, 3/4],
    [  0,   1]])
    """
    if kind not in ("cubic", "linear"):
        raise WorkError(f"resize: needs cubic or linear, got {kind!r}")
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
        return (CUBIC + 2) * far**3 - (CUBIC + 3) * far**2 + 1
    return CUBIC * (far**3 - 5 * far**2 + 8 * far - 4)


def _classify(work: Working, z: str, first: bool) -> None:
    """From the class token to a class."""
    if first:
        z = norm(work, z, "_f")
    x = work.step("x", "rows 1 to 1", z, says="the class token: it has seen every patch")
    if "W_P" in work.values:
        x = linear(work, "y", x, "W_P", says="the hidden layer of the head")
        x = work.step("t", "tanh", x, says="bent")
    work_on = linear(work, "l", x, "W_H", says="the head: a score for each class")
    e = work.step("e", "exp", work_on, says="the exponentials")
    s = work.step("s", "sum over rows", e, says="their sum")
    p = work.step("p", "divide rows", e, s, says="the chance of each class")
    if work.values[p].free_symbols:
        return  # which is largest depends on the symbols
    best = largest(work.values[p])
    said = " and ".join(str(n + 1) for n in best)
    word = "class" if len(best) == 1 else "a tie of classes"
    work.remark(
        f"The picture is {word} {said}, with a chance of {decimal(work.values[p][0, best[0]], 4)}; "
        f"the largest score is that of the largest chance."
    )
