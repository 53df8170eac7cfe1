"""Attention with several heads by hand: split, attended side by side, joined and mixed."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import ShapeError, WorkError
from regard.work.exact.numbers import format_decimal
from regard.work.families.attention import (
    AttentionSetup,
    add_attention,
    add_linear,
    is_row_convention,
    project_qkv,
)
from regard.work.families.names import HEAD_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family, weight_shapes
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder

_QUESTIONS = ("Q_*", "K_*", "V_*", "S_*", "Z_*", "R_*", "A_*", "H_*", "H", "O")


@family(
    "multi-head",
    given=f"X Y Q K V {HEAD_NAMES} B B_# rel β",
    exercises=(
        ExerciseTemplate(
            {"X": (2, 2)} | weight_shapes("QKVO", (2, 2)),
            option_choices={"heads": (2,), "scale": (1,)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"X": (2, 4)} | weight_shapes("QKVO", (4, 4)),
            option_choices={"heads": (2,)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"X": (3, 4)} | weight_shapes("QKVO", (4, 4)),
            option_choices={"heads": (2,), "mask": ("causal",)},
            questions=_QUESTIONS,
        ),
    ),
)
def solve_multi_head(
    given: Mapping[str, Any],
    *,
    convention: str = "rows",
    scale: Any = None,
    mask: Any = None,
    heads: int | None = None,
) -> Solution:
    """Attention with several heads, every step exact; what each head adds stands at the end.

    rows:     O = [H_1 | … | H_h] W_O,    H_i = attention of X W_Q_i, X W_K_i, X W_V_i
    columns:  O = W_O [H_1; …; H_h]

    Given is X (and Y, for keys and values), and W_Q_1, W_K_1, W_V_1, W_Q_2 … a head, or one big
    W_Q, W_K, W_V and `heads`, which splits what they give. W_O and biases b_Q … where wanted.

    >>> one = [[1, 0], [0, 1]]
    >>> told = {"X": [[1, 2]], "W_Q": one, "W_K": one, "W_V": one, "W_O": one}
    >>> solve_multi_head(told, heads=2)["O"]
    Matrix([[1, 2]])
    """
    check_given("multi-head", given)
    ways = AttentionSetup(is_row_convention(convention), scale, mask)
    work = SolutionBuilder("multi-head", {k: v for k, v in given.items() if v is not None})
    if "X" not in work.values:
        raise WorkError(f"given: needs X, got {', '.join(work.given) or 'nothing'}")
    add_multi_head(work, ways, heads)
    _add_up(work, ways.tokens_as_rows)
    return work.build()


def add_multi_head(
    builder: SolutionBuilder,
    setup: AttentionSetup,
    heads: int | None = None,
    suffix: str = "",
    sources: tuple[str, str] = ("X", "Y"),
    weight_pattern: str = "W_{}",
) -> str:
    """The heads side by side, joined and mixed by W_O; the name of what comes out.

    >>> work = SolutionBuilder("none", {"X": [[1, 2]]})
    >>> work.values[add_multi_head(work, AttentionSetup(), heads=2)]
    Matrix([[1, 2]])
    """
    count = _count(builder, heads, weight_pattern)
    if count == 1:
        joined = add_attention(
            builder,
            *project_qkv(builder, setup.tokens_as_rows, suffix, sources, weight_pattern),
            suffix,
            setup,
        )
    else:
        parts = [
            add_attention(builder, *names, extend_suffix(suffix, n), setup)
            for n, names in enumerate(
                _split(builder, setup, count, suffix, sources, weight_pattern), 1
            )
        ]
        together = f"join {count}" if setup.tokens_as_rows else f"stack {count}"
        joined = builder.add_step(f"H{suffix}", together, *parts, title="the heads, joined")
        _wide_scale(builder, setup, count, suffix)
    out = weight_pattern.format("O")
    if out not in builder.values:
        return joined
    says = "the heads, mixed into one vector a token"
    name = add_linear(
        builder, f"O{suffix}", joined, out, tokens_as_rows=setup.tokens_as_rows, title=says
    )
    builder.add_mistake(name, "W_O was left out", builder.values[joined])
    return name


def extend_suffix(suffix: str, n: int) -> str:
    """The index of part n below an index: _1, _s1 for head 1 of s, _2.1 for head 1 of layer 2.

    >>> extend_suffix("", 1), extend_suffix("_s", 1), extend_suffix("_2", 1)
    ('_1', '_s1', '_2.1')
    """
    if not suffix:
        return f"_{n}"
    return f"{suffix}.{n}" if suffix[-1].isdigit() else f"{suffix}{n}"


def _count(work: SolutionBuilder, heads: int | None, by: str) -> int:
    """How many heads: as told, or as many as have weights of their own."""
    own = 0
    while by.format(f"Q_{own + 1}") in work.values:
        own += 1
    if heads is None:
        return max(own, 1)
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise WorkError(f"heads: needs a whole number from 1 on, got {heads!r}")
    if own and own != heads:
        first = by.format("Q_1")
        raise WorkError(f"heads: needs as many as there are {first} …: {own}, got {heads}")
    return heads


def _split(
    work: SolutionBuilder, ways: AttentionSetup, count: int, at: str, of: tuple[str, str], by: str
) -> list[tuple[str, str, str]]:
    """The queries, keys and values of each head: by weights of its own, or its part of all."""
    if by.format("Q_1") in work.values:
        return [
            project_qkv(work, ways.tokens_as_rows, extend_suffix(at, n), of, by.format(f"{{}}_{n}"))
            for n in range(1, count + 1)
        ]
    wholes = project_qkv(work, ways.tokens_as_rows, at, of, by)
    widths = [
        work.values[one].cols if ways.tokens_as_rows else work.values[one].rows for one in wholes
    ]
    for width in widths:
        if width % count:
            fit = [str(n) for n in range(1, width + 1) if width % n == 0]
            raise ShapeError(
                f"heads: needs a divisor of the width {width}, each head gets an equal part, got "
                f"{count}; try one of {', '.join(fit)}"
            )
    made: dict[tuple[str, int], str] = {}

    def part(letter: int, n: int) -> str:
        whole, width = wholes[letter], widths[letter] // count
        # without weights of their own, queries, keys and values are one thing, split once
        if (whole, n) not in made:
            kind = "columns" if ways.tokens_as_rows else "rows"
            rule = f"{kind} {(n - 1) * width + 1} to {n * width}"
            name = f"{whole[0]}{extend_suffix(at, n)}"
            made[whole, n] = work.add_step(name, rule, whole, title=f"the part of head {n}")
        return made[whole, n]

    return [(part(0, n), part(1, n), part(2, n)) for n in range(1, count + 1)]


def _wide_scale(work: SolutionBuilder, ways: AttentionSetup, count: int, at: str) -> None:
    """Who scales each head by the width of all heads together makes this of it."""
    for n in range(1, count + 1):
        scores = work.values.get(f"S{extend_suffix(at, n)}")
        if ways.scale is None and scores is not None and f"Z{extend_suffix(at, n)}" in work.values:
            wrong = M(scores * work.values[ways.scale_name][0, 0] / sympy.sqrt(count))
            says = "the scale was that of all heads together"
            work.add_mistake(f"Z{extend_suffix(at, n)}", says, wrong)


def _add_up(work: SolutionBuilder, rows: bool) -> None:
    """Say what each head adds to the first token, and that together it is the output."""
    heads = [name for name in work.values if name.startswith("H_")]
    if "O" not in work.values or len(heads) < 2:
        return
    out, whole = work.values["W_O"], work.values["O"]
    out, whole = (out, whole) if rows else (out.T, whole.T)
    start, told = 0, []
    for n, name in enumerate(heads, 1):
        part = work.values[name] if rows else work.values[name].T
        adds = part.row(0) * out[start : start + part.cols, :]
        start += part.cols
        told.append(f"head {n} adds {_vector(adds)}")
    bias = f", the bias {_vector(work.values['b_O'])}" if "b_O" in work.values else ""
    work.add_remark(
        f"Each head meets its own part of W_O, and the parts add up: to token 1 "
        f"{', '.join(told)}{bias}; together {_vector(whole.row(0))}."
    )


def _vector(row: Matrix) -> str:
    return f"({', '.join(format_decimal(x, 4) for x in row)})"
