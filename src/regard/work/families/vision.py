"""Vision Transformer: patches, class token, position embeddings, encoder blocks, head."""

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from math import isqrt
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact import MAX_ENTRIES, format_decimal
from regard.work.families.attention import add_linear
from regard.work.families.block import (
    DEFAULT_EPS,
    BlockSetup,
    add_encoder_block,
    add_norm,
    start_block,
)
from regard.work.families.registry import check_choice, check_integer, declared_steps, family
from regard.work.rules import M, Matrix
from regard.work.rules.scores import argmax_ties
from regard.work.solution import Solution, SolutionBuilder

VIT_REQUIRED = ("W_E", "cls", "pos", "W_1", "W_2", "W_H")
MAX_LAYERS = 12
CUBIC_COEFFICIENT = sympy.Rational(-3, 4)  # a of the cubic kernel, as in torch and OpenCV


@family("vit")
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
    """Classify an image with a Vision Transformer.

    X_0 = [cls; patches W_E] + pos,   class = argmax softmax(encoder(X_0)_cls W_H)

    Given: image (image_1, image_2 … per channel), W_E (P² C rows), cls, pos, the weights of an
    encoder block, and W_H; W_P adds a tanh layer to the head. Position embeddings of another grid
    are resized. W_Q_L2, W_K_L2 … are the weights of layer 2; else layers share them.

    Args:
        given: matrices by name.
        patch_size: side P of a patch.
        heads: number of heads; from the weights if None.
        layers: number of encoder blocks.
        norm: "pre" or "post".
        activation: "relu", "gelu" or "silu".
        eps: ε of the norms.
        interpolation: "cubic" or "linear", for position embeddings of another grid.

    >>> eye = [[1, 0], [0, 1]]
    >>> given = {"image": [[1, 0], [0, 1]], "W_E": [[1, 0]] * 4, "cls": [[0, 0]], "W_H": eye}
    >>> solve_vit(given | {"pos": [[0, 0]] * 2, "W_1": eye, "W_2": eye})["T"]
    Matrix([[1, 0, 0, 1]])
    """
    names = _channels(given)
    builder = start_block("vit", {**given, "X": given[names[0]]}, *VIT_REQUIRED, eps=eps)
    del builder.given["X"], builder.values["X"]
    z = _add_embedding(builder, names, patch_size, interpolation)
    check_choice("norm", norm, ("pre", "post"))
    block = BlockSetup(heads, norm == "pre", activation)
    if check_integer("layers", layers) > MAX_LAYERS:
        raise WorkError(f"layers: needs at most {MAX_LAYERS} by hand, got {layers}")
    for layer in range(1, layers + 1):
        suffix = _layer_suffix(builder, f"_L{layer}")
        z = add_encoder_block(builder, z, block, f"_{layer}" if layers > 1 else "", suffix)
    _add_classifier(builder, z, block.pre_norm)
    return builder.build()


@family("position-resize")
def solve_position_resize(
    given: Mapping[str, Any],
    *,
    old_grid: Sequence[int] = (),
    new_grid: Sequence[int] = (),
    interpolation: str = "cubic",
) -> Solution:
    """Resize learned position embeddings to another patch grid; the class token keeps its row.

    pos' = [pos_cls; R pos_patches],   R = interpolation weights from the old to the new grid

    >>> given = {"pos": [[9], [1], [2], [3], [4]]}
    >>> solve_position_resize(given, old_grid=[2, 2], new_grid=[1, 1])["pos_new"]
    Matrix([
    [  9],
    [5/2]])
    """
    if "pos" not in given:
        raise WorkError("given: needs pos, the position embeddings, got none")
    builder = SolutionBuilder("position-resize", {"pos": given["pos"]})
    _add_resize(builder, _grid("old_grid", old_grid), _grid("new_grid", new_grid), interpolation)
    return builder.build()


def _layer_suffix(builder: SolutionBuilder, suffix: str) -> str:
    """Suffix of the weights of one layer, "" if it shares them; a layer has all or none."""
    if not any(name.endswith(suffix) for name in builder.given):
        return ""
    shared = [
        n for n in builder.given if n.startswith("W_") and "L" not in n and n[2:] not in "EHP"
    ]
    missing = [f"{name}{suffix}" for name in shared if f"{name}{suffix}" not in builder.given]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} too for a layer with weights, got none")
    return suffix


def _grid(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise WorkError(f"{name}: needs two numbers, patches down and across, got {value!r}")
    down, across = check_integer(name, value[0]), check_integer(name, value[1])
    if down * across > MAX_ENTRIES:
        raise WorkError(f"{name}: needs at most {MAX_ENTRIES} patches, got {down}×{across}")
    return down, across


def _channels(given: Mapping[str, Any]) -> list[str]:
    """Names of the image channels, in order."""
    channels = takewhile(given.__contains__, (f"image_{n}" for n in count(1)))
    names = ["image"] if "image" in given else list(channels)
    if not names:
        raise WorkError("given: needs image, or image_1, image_2 … for channels, got none")
    return names


def _add_embedding(
    builder: SolutionBuilder, names: list[str], patch: int, interpolation: str
) -> str:
    """Add the steps from the image to tokens with position embeddings."""
    rule = f"patches of {check_integer('patch_size', patch)}"
    if len(names) == 1:
        t = builder.add_step("T", rule, names[0], title="the patches, one per row")
    else:
        parts = [
            builder.add_step(f"T_{n}", rule, name, title=f"the patches of channel {n}")
            for n, name in enumerate(names, 1)
        ]
        title = "the channels of each patch in one row"
        t = builder.add_step("T", f"join {len(parts)}", *parts, title=title)
    x = add_linear(builder, "X_p", t, "W_E", title="the patch embeddings")
    z = builder.add_step("X_c", "stack 2", "cls", x, title="with the class token in front")
    image = builder.values[names[0]]
    grid = image.rows // patch, image.cols // patch
    pos, rows = "pos", builder.values["pos"].rows
    if rows != builder.values[z].rows:
        side = isqrt(rows - 1)
        if side * side != rows - 1 or not side:
            rule = "1 row for the class token and a square number of patches"
            raise ShapeError(f"pos: needs {rule}, got {rows}")
        pos = _add_resize(builder, (side, side), grid, interpolation)
    return builder.add_step("X_0", "add", z, pos, title="plus the position embeddings")


def _add_resize(
    builder: SolutionBuilder, old: tuple[int, int], new: tuple[int, int], interpolation: str
) -> str:
    """Add the steps that resize the position embeddings."""
    rows = builder.values["pos"].rows
    if rows != 1 + old[0] * old[1]:
        raise ShapeError(f"pos: needs 1 + {old[0]} · {old[1]} rows for this grid, got {rows}")
    down, across = (
        interpolation_weights(size, new_size, interpolation)
        for size, new_size in zip(old, new, strict=True)
    )
    builder.add_given("R", sympy.kronecker_product(down, across))
    resized = f"resized as an image, {old[0]}×{old[1]} to {new[0]}×{new[1]}: R interpolates"
    if old == new:
        builder.add_remark("Same grid: R is the identity.")
    table = declared_steps("position-resize", "rows", rows=rows, resized=resized)
    return builder.add_steps(*table)[-1]


def interpolation_weights(old: int, new: int, interpolation: str = "cubic") -> Matrix:
    """Exact interpolation matrix (new × old) along one axis, half-pixel centres, edges clamped.

    >>> interpolation_weights(2, 4, "linear")
    Matrix([
    [  1,   0],
    [3/4, 1/4],
    [1/4, 3/4],
    [  0,   1]])
    """
    check_choice("interpolation", interpolation, ("cubic", "linear"))
    weights = sympy.zeros(new, old)
    taps = range(-1, 3) if interpolation == "cubic" else range(2)
    for i in range(new):
        position = sympy.Rational(2 * i + 1, 2) * sympy.Rational(old, new) - sympy.Rational(1, 2)
        position = sympy.Max(position, 0) if interpolation == "linear" else position
        left = sympy.floor(position)
        for tap in taps:
            source = min(max(int(left) + tap, 0), old - 1)  # clamp to the edge
            weights[i, source] += _kernel(abs(position - left - tap), interpolation)
    return M(weights)


def _kernel(distance: Any, interpolation: str) -> Any:
    if interpolation == "linear":
        return 1 - distance
    if distance <= 1:
        return (CUBIC_COEFFICIENT + 2) * distance**3 - (CUBIC_COEFFICIENT + 3) * distance**2 + 1
    return CUBIC_COEFFICIENT * (distance**3 - 5 * distance**2 + 8 * distance - 4)


def _add_classifier(builder: SolutionBuilder, z: str, pre_norm: bool) -> None:
    """Add the classification head."""
    if pre_norm:
        z = add_norm(builder, z, "_f")
    x = builder.add_step("x", "rows 1 to 1", z, title="the class token")
    if "W_P" in builder.values:
        x = add_linear(builder, "y", x, "W_P", title="the hidden layer of the head")
        x = builder.add_step("t", "tanh", x, title="tanh")
    logits = add_linear(builder, "l", x, "W_H", title="the logits")
    builder.add_steps(*declared_steps("vit", "probabilities", logits=logits))
    p = builder.values["p"]
    if p.free_symbols:
        return  # the argmax depends on the symbols
    best = argmax_ties(p)
    classes = " and ".join(str(n + 1) for n in best)
    word = "class" if len(best) == 1 else "a tie of classes"
    probability = format_decimal(p[0, best[0]], 4)
    builder.add_remark(f"The prediction is {word} {classes}, with probability {probability}.")
