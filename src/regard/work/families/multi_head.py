"""Multi-head attention: split, attend, concatenate, project."""

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
    """Multi-head attention, with the contribution of each head to the output.

    rows:     O = [H_1 | … | H_h] W_O,    H_i = attention of X W_Q_i, X W_K_i, X W_V_i
    columns:  O = W_O [H_1; …; H_h]

    Given: X (and Y for keys and values), and W_Q_1, W_K_1, W_V_1, W_Q_2 … per head, or W_Q, W_K,
    W_V that are split into `heads`. W_O and biases b_Q … are optional.

    Args:
        given: matrices by name.
        convention: "rows" or "columns": how tokens are written.
        scale: β; 1/√d_head if None.
        mask: as for attention.
        heads: number of heads; from the weights if None.

    >>> eye = [[1, 0], [0, 1]]
    >>> given = {"X": [[1, 2]], "W_Q": eye, "W_K": eye, "W_V": eye, "W_O": eye}
    >>> solve_multi_head(given, heads=2)["O"]
    Matrix([[1, 2]])
    """
    check_given("multi-head", given)
    setup = AttentionSetup(is_row_convention(convention), scale, mask)
    builder = SolutionBuilder("multi-head", {k: v for k, v in given.items() if v is not None})
    if "X" not in builder.values:
        raise WorkError(f"given: needs X, got {', '.join(builder.given) or 'nothing'}")
    add_multi_head(builder, setup, heads)
    _add_remark(builder, setup.tokens_as_rows)
    return builder.build()


def add_multi_head(
    builder: SolutionBuilder,
    setup: AttentionSetup,
    heads: int | None = None,
    suffix: str = "",
    sources: tuple[str, str] = ("X", "Y"),
    weight_pattern: str = "W_{}",
) -> str:
    """Add the heads, their concatenation and the output projection; return the name of the result.

    >>> builder = SolutionBuilder("none", {"X": [[1, 2]]})
    >>> builder.values[add_multi_head(builder, AttentionSetup(), heads=2)]
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
        heads_out = [
            add_attention(builder, *names, extend_suffix(suffix, n), setup)
            for n, names in enumerate(
                _split(builder, setup, count, suffix, sources, weight_pattern), 1
            )
        ]
        rule = f"join {count}" if setup.tokens_as_rows else f"stack {count}"
        joined = builder.add_step(f"H{suffix}", rule, *heads_out, title="the concatenated heads")
        _add_scale_mistakes(builder, setup, count, suffix)
    out = weight_pattern.format("O")
    if out not in builder.values:
        return joined
    title = "the output projection"
    name = add_linear(
        builder, f"O{suffix}", joined, out, tokens_as_rows=setup.tokens_as_rows, title=title
    )
    builder.add_mistake(name, "W_O was left out", builder.values[joined])
    return name


def extend_suffix(suffix: str, n: int) -> str:
    """Suffix of head n below a suffix: _1, _s1 for head 1 of s, _2.1 for head 1 of layer 2.

    >>> extend_suffix("", 1), extend_suffix("_s", 1), extend_suffix("_2", 1)
    ('_1', '_s1', '_2.1')
    """
    if not suffix:
        return f"_{n}"
    return f"{suffix}.{n}" if suffix[-1].isdigit() else f"{suffix}{n}"


def _count(builder: SolutionBuilder, heads: int | None, weight_pattern: str) -> int:
    """Number of heads: as requested, or from the weights W_Q_1, W_Q_2 …"""
    head_weights = 0
    while weight_pattern.format(f"Q_{head_weights + 1}") in builder.values:
        head_weights += 1
    if heads is None:
        return max(head_weights, 1)
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise WorkError(f"heads: needs a whole number from 1 on, got {heads!r}")
    if head_weights and head_weights != heads:
        first = weight_pattern.format("Q_1")
        raise WorkError(f"heads: needs as many as there are {first} …: {head_weights}, got {heads}")
    return heads


def _split(
    builder: SolutionBuilder,
    setup: AttentionSetup,
    count: int,
    suffix: str,
    sources: tuple[str, str],
    weight_pattern: str,
) -> list[tuple[str, str, str]]:
    """Queries, keys and values of each head: from its own weights, or slices of the whole."""
    if weight_pattern.format("Q_1") in builder.values:
        return [
            project_qkv(
                builder,
                setup.tokens_as_rows,
                extend_suffix(suffix, n),
                sources,
                weight_pattern.format(f"{{}}_{n}"),
            )
            for n in range(1, count + 1)
        ]
    projections = project_qkv(builder, setup.tokens_as_rows, suffix, sources, weight_pattern)
    widths = [
        builder.values[name].cols if setup.tokens_as_rows else builder.values[name].rows
        for name in projections
    ]
    for width in widths:
        if width % count:
            divisors = [str(n) for n in range(1, width + 1) if width % n == 0]
            raise ShapeError(
                f"heads: needs a divisor of the width {width}, got "
                f"{count}; try one of {', '.join(divisors)}"
            )
    slices: dict[tuple[str, int], str] = {}

    def head_slice(letter: int, n: int) -> str:
        full, width = projections[letter], widths[letter] // count
        # without projections queries, keys and values are the same matrix, split once
        if (full, n) not in slices:
            axis = "columns" if setup.tokens_as_rows else "rows"
            rule = f"{axis} {(n - 1) * width + 1} to {n * width}"
            name = f"{full[0]}{extend_suffix(suffix, n)}"
            slices[full, n] = builder.add_step(name, rule, full, title=f"the slice of head {n}")
        return slices[full, n]

    return [(head_slice(0, n), head_slice(1, n), head_slice(2, n)) for n in range(1, count + 1)]


def _add_scale_mistakes(
    builder: SolutionBuilder, setup: AttentionSetup, count: int, suffix: str
) -> None:
    """Mistake: each head scaled by the width of all heads."""
    for n in range(1, count + 1):
        scores = builder.values.get(f"S{extend_suffix(suffix, n)}")
        if (
            setup.scale is None
            and scores is not None
            and f"Z{extend_suffix(suffix, n)}" in builder.values
        ):
            wrong = M(scores * builder.values[setup.scale_name][0, 0] / sympy.sqrt(count))
            title = "the scale was that of the full width"
            builder.add_mistake(f"Z{extend_suffix(suffix, n)}", title, wrong)


def _add_remark(builder: SolutionBuilder, rows: bool) -> None:
    """Remark the contribution of each head to the first token."""
    heads = [name for name in builder.values if name.startswith("H_")]
    if "O" not in builder.values or len(heads) < 2:
        return
    out, full = builder.values["W_O"], builder.values["O"]
    out, full = (out, full) if rows else (out.T, full.T)
    offset, terms = 0, []
    for n, name in enumerate(heads, 1):
        head_slice = builder.values[name] if rows else builder.values[name].T
        contribution = head_slice.row(0) * out[offset : offset + head_slice.cols, :]
        offset += head_slice.cols
        terms.append(f"head {n} adds {_vector(contribution)}")
    bias = f", the bias {_vector(builder.values['b_O'])}" if "b_O" in builder.values else ""
    builder.add_remark(
        f"Each head is multiplied by its rows of W_O, and the products are added: for token 1 "
        f"{', '.join(terms)}{bias}; together {_vector(full.row(0))}."
    )


def _vector(row: Matrix) -> str:
    return f"({', '.join(format_decimal(x, 4) for x in row)})"
