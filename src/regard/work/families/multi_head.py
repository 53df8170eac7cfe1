"""Multi-head attention: split, attend, concatenate, project."""

from collections.abc import Mapping
from typing import Any

from regard.errors import ShapeError, WorkError
from regard.work.exact import format_decimal
from regard.work.families.attention import AttentionSetup, add_attention, add_linear, project_qkv
from regard.work.families.registry import check_choice, check_integer, family
from regard.work.rules import Matrix
from regard.work.solution import Solution, SolutionBuilder


@family("multi-head")
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
    check_choice("convention", convention, ("rows", "columns"))
    setup = AttentionSetup(convention == "rows", scale, mask)
    builder = SolutionBuilder("multi-head", dict(given))
    if "X" not in builder.values:
        raise WorkError(f"given: needs X, got {', '.join(builder.given) or 'nothing'}")
    add_multi_head(builder, setup, heads)
    _add_remark(builder, setup)
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
        names = project_qkv(builder, setup, suffix, sources, weight_pattern)
        joined = add_attention(builder, *names, suffix, setup)
    else:
        split = _split(builder, setup, count, suffix, sources, weight_pattern)
        outputs = [
            add_attention(builder, *names, extend_suffix(suffix, n), setup)
            for n, names in enumerate(split, 1)
        ]
        rule = f"join {count}" if setup.tokens_as_rows else f"stack {count}"
        joined = builder.add_step(f"H{suffix}", rule, *outputs, title="the concatenated heads")
    out = weight_pattern.format("O")
    if out not in builder.values:
        return joined
    title = "the output projection"
    return add_linear(builder, f"O{suffix}", joined, out, setup=setup, title=title)


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
    check_integer("heads", heads)
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
    """Queries, keys and values of each head: from its weights, or slices of the whole."""
    numbers = range(1, count + 1)
    if weight_pattern.format("Q_1") in builder.values:
        patterns = {n: weight_pattern.format(f"{{}}_{n}") for n in numbers}
        return [
            project_qkv(builder, setup, extend_suffix(suffix, n), sources, patterns[n])
            for n in numbers
        ]
    projections = project_qkv(builder, setup, suffix, sources, weight_pattern)
    widths = [setup.with_token_rows(builder.values[name]).cols for name in projections]
    for width in widths:
        if width % count:
            divisors = [str(n) for n in range(1, width + 1) if width % n == 0]
            raise ShapeError(
                f"heads: needs a divisor of the width {width}, got "
                f"{count}; try one of {', '.join(divisors)}"
            )
    axis = "columns" if setup.tokens_as_rows else "rows"
    (q, k, v), heads = projections, []
    for n in numbers:
        slices = {}
        # without projections queries, keys and values are the same matrix, split once
        for full, width in dict(zip(projections, widths, strict=True)).items():
            rule = f"{axis} {(n - 1) * width // count + 1} to {n * width // count}"
            name = f"{full[0]}{extend_suffix(suffix, n)}"
            slices[full] = builder.add_step(name, rule, full, title=f"the slice of head {n}")
        heads.append((slices[q], slices[k], slices[v]))
    return heads


def _add_remark(builder: SolutionBuilder, setup: AttentionSetup) -> None:
    """Remark the contribution of each head to the first token."""
    heads = [name for name in builder.values if name.startswith("H_")]
    if "O" not in builder.values or len(heads) < 2:
        return
    values = {name: setup.with_token_rows(builder.values[name]) for name in (*heads, "W_O", "O")}
    offset, terms = 0, []
    for n, name in enumerate(heads, 1):
        width = values[name].cols
        contribution = values[name].row(0) * values["W_O"][offset : offset + width, :]
        offset += width
        terms.append(f"head {n} adds {_vector(contribution)}")
    bias = f", the bias {_vector(builder.values['b_O'])}" if "b_O" in builder.values else ""
    builder.add_remark(
        f"Each head is multiplied by its rows of W_O, and the products are added: for token 1 "
        f"{', '.join(terms)}{bias}; together {_vector(values['O'].row(0))}."
    )


def _vector(row: Matrix) -> str:
    return f"({', '.join(format_decimal(x, 4) for x in row)})"
