"""Self- and cross-attention: any score, mask and bias, tokens as rows or columns."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError, suggestion
from regard.work.exact.numbers import format_decimal, parse_matrix, parse_number
from regard.work.families.names import ATTENTION_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family, weight_shapes
from regard.work.rules import M, Matrix
from regard.work.rules.scores import argmax_ties
from regard.work.solution import Solution, SolutionBuilder

SCORE_WEIGHTS = {"dot": (), "bilinear": ("W_B",), "additive": ("W_1", "W_2", "V_a")}

MAX_SCALE = 10_000  # exact exponentials of more get too long
_QUESTIONS = ("Q", "K", "V", "S", "Z", "R", "A", "H")


class AttentionSetup(NamedTuple):
    """Options of an attention: convention, scale, mask, score, and names of scale and mask.

    >>> AttentionSetup().score
    'dot'
    """

    tokens_as_rows: bool = True
    scale: Any = None
    mask: Any = None
    score: str = "dot"
    scale_name: str = "β"
    mask_name: str = "mask"

    @property
    def softmax_axis(self) -> str:
        """Axis along which the weights of one query sum to 1."""
        return "rows" if self.tokens_as_rows else "columns"


@family(
    "attention",
    given=f"{ATTENTION_NAMES} Y W_B W_1 W_2 V_a",
    exercises=(
        ExerciseTemplate({"X": (2, 2)}, option_choices={"scale": (1,)}, questions=_QUESTIONS),
        ExerciseTemplate(
            {"X": (3, 2)} | weight_shapes("QKV", (2, 2)),
            option_choices={"scale": (1,)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"X": (3, 3)} | weight_shapes("QKV", (3, 3)),
            option_choices={"mask": ("none", "causal"), "convention": ("rows", "columns")},
            questions=_QUESTIONS,
        ),
    ),
)
def solve_attention(
    given: Mapping[str, Any],
    *,
    convention: str = "rows",
    scale: Any = None,
    mask: Any = None,
    score: str = "dot",
) -> Solution:
    """Scaled dot-product, bilinear or additive attention over a few tokens.

    rows:     Q = X W_Q, …   A = softmax(β Q Kᵀ) over each row,      H = A V
    columns:  Q = W_Q X, …   A = softmax(β Kᵀ Q) down each column,   H = V A

    Given: X with W_Q, W_K, W_V (a missing one is the identity), or Q, K, V. With Y, keys and values
    come from Y. Optional biases: B (matrix) or rel (by distance).

    Args:
        given: matrices by name.
        convention: "rows" or "columns": how tokens are written.
        scale: β, a number or "inf" for hard attention; 1/√d if None.
        mask: "causal", "local:N", both, or a matrix of 0 and 1 with one row per query.
        score: "dot", "bilinear" (needs W_B) or "additive" (needs W_1, W_2, V_a).

    >>> solution = solve_attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> solution["A"][0, 0]
    E/(1 + 2*E)
    """
    check_given("attention", given)
    setup = AttentionSetup(is_row_convention(convention), scale, mask, score)
    builder = SolutionBuilder("attention", {k: v for k, v in given.items() if v is not None})
    add_attention(builder, *project_qkv(builder, setup.tokens_as_rows), setup=setup)
    _add_source_mistakes(builder, setup.tokens_as_rows)
    _add_remarks(builder, setup.tokens_as_rows)
    return builder.build()


@family(
    "cross-attention",
    given=f"{ATTENTION_NAMES} Y W_B W_1 W_2 V_a",
    exercises=(
        ExerciseTemplate(
            {"X": (1, 2), "Y": (2, 2)}, option_choices={"scale": (1,)}, questions=_QUESTIONS
        ),
        ExerciseTemplate(
            {"X": (2, 2), "Y": (2, 2)} | weight_shapes("QKV", (2, 2)),
            option_choices={"scale": (1,)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"X": (2, 2), "Y": (3, 2)} | weight_shapes("QKV", (2, 2)), questions=_QUESTIONS
        ),
    ),
)
def solve_cross_attention(
    given: Mapping[str, Any],
    *,
    convention: str = "rows",
    scale: Any = None,
    mask: Any = None,
    score: str = "dot",
) -> Solution:
    """Cross-attention: queries from X, keys and values from Y.

    Q = X W_Q,   K = Y W_K,   V = Y W_V,   H = softmax(β Q Kᵀ) V

    >>> solve_cross_attention({"X": [[1]], "Y": [[2], [2]]})["A"]
    Matrix([[1/2, 1/2]])
    """
    missing = [name for name in ("X", "Y") if given.get(name) is None]
    if missing:
        raise WorkError(
            f"given: needs X for the queries and Y for keys and values, got no "
            f"{' and no '.join(missing)}; try the family attention for one sequence"
        )
    solved = solve_attention(given, convention=convention, scale=scale, mask=mask, score=score)
    return replace(solved, family="cross-attention")


def _add_source_mistakes(builder: SolutionBuilder, rows: bool) -> None:
    """Mistake: keys and values projected from X instead of Y."""
    for letter in "KV":
        x, weight = builder.values.get("X"), builder.values.get(f"W_{letter}")
        if (
            "Y" in builder.given
            and letter not in builder.given
            and x is not None
            and weight is not None
        ):
            description = "they were computed from X, the queries' tokens, not from Y"
            builder.add_mistake(letter, description, M(x * weight) if rows else M(weight * x))


def is_row_convention(convention: str) -> bool:
    """Whether tokens are rows; else they are columns.

    >>> is_row_convention("columns")
    False
    """
    if convention not in ("rows", "columns"):
        raise WorkError(f"convention: needs rows or columns, got {convention!r}")
    return convention == "rows"


def project_qkv(
    builder: SolutionBuilder,
    tokens_as_rows: bool = True,
    suffix: str = "",
    sources: tuple[str, str] = ("X", "Y"),
    weight_pattern: str = "W_{}",
) -> tuple[str, str, str]:
    """Add the projections that are not given; return the names of queries, keys and values.

    >>> builder = SolutionBuilder("none", {"X": [[1, 2]], "W_Q": [[1], [1]]})
    >>> project_qkv(builder)
    ('Q', 'X', 'X')
    """
    memory = sources[1] if sources[1] in builder.values else sources[0]
    q, k, v = (
        _add_projection(
            builder, letter, source, tokens_as_rows, suffix, weight_pattern.format(letter)
        )
        for letter, source in zip("QKV", (sources[0], memory, memory), strict=True)
    )
    return q, k, v


def _add_projection(
    builder: SolutionBuilder, letter: str, source: str, rows: bool, suffix: str, weight: str
) -> str:
    name = f"{letter}{suffix}"
    if name in builder.values:
        return name
    if source not in builder.values:
        raise WorkError(
            f"given: needs X, or Q, K and V, got {', '.join(builder.given) or 'nothing'}"
        )
    if weight not in builder.values:
        return source
    names = {"Q": "queries", "K": "keys"}
    title = f"the {names.get(letter, 'values')}"
    return add_linear(builder, name, source, weight, tokens_as_rows=rows, title=title)


def add_linear(
    builder: SolutionBuilder,
    name: str,
    x: str,
    weight: str,
    *,
    title: str,
    tokens_as_rows: bool = True,
) -> str:
    """Add a linear layer; its bias has the name of the weight with b for W, and is optional.

    >>> builder = SolutionBuilder("none", {"X": [[1, 2]], "W_F": [[1], [1]], "b_F": [[4]]})
    >>> builder.values[add_linear(builder, "F", "X", "W_F", title="the hidden layer")]
    Matrix([[7]])
    """
    bias = f"b{weight[1:]}" if weight.startswith("W") else f"b_{weight}"
    inputs = (x, weight) if tokens_as_rows else (weight, x)
    if bias not in builder.values:
        return builder.add_step(name, "product", *inputs, title=title)
    return builder.add_step(
        name, "affine" if tokens_as_rows else "affine, columns", *inputs, bias, title=title
    )


def add_attention(
    builder: SolutionBuilder,
    q: str,
    k: str,
    v: str,
    suffix: str = "",
    setup: AttentionSetup | None = None,
) -> str:
    """Add the steps from queries, keys and values to the outputs; step names end in `suffix`.

    >>> builder = SolutionBuilder("none", {"Q": [[1]], "K": [[1], [1]], "V": [[0], [4]]})
    >>> builder.values[add_attention(builder, "Q", "K", "V", "_1")]
    Matrix([[2]])
    """
    setup = setup or AttentionSetup()
    return add_softmax_output(
        builder,
        add_scores(builder, q, k, suffix, setup),
        _width(builder, q, setup),
        v,
        suffix,
        setup,
    )


def add_softmax_output(
    builder: SolutionBuilder, scores: str, head_dim: int, v: str, suffix: str, setup: AttentionSetup
) -> str:
    """Add the steps from scores to outputs; `head_dim` sets the default scale.

    >>> builder = SolutionBuilder("none", {"S": [[0, 0]], "V": [[0], [4]]})
    >>> builder.values[add_softmax_output(builder, "S", 1, "V", "", AttentionSetup())]
    Matrix([[2]])
    """
    rows, scale = setup.tokens_as_rows, _add_scale(builder, head_dim, setup)
    if scale != sympy.oo and scale != 1:
        scores = builder.add_step(
            f"Z{suffix}", "scale", scores, setup.scale_name, title="the scaled scores"
        )
    bias = _add_bias(builder, scores, suffix, setup)
    if bias is not None:
        if scale == sympy.oo:
            raise WorkError("scale: needs to be finite where a bias is added, got inf")
        scores = builder.add_step(
            f"C{suffix}", "add", scores, bias, title="with the bias of each pair"
        )
    shape = builder.values[scores].shape
    mask = mask_matrix(setup.mask, *(shape if rows else shape[::-1]))
    unmasked = scores
    if mask is not None:
        if setup.mask_name not in builder.values:
            builder.add_given(setup.mask_name, mask if rows else mask.T)
        title = "masked scores are set to -inf"
        scores = builder.add_step(f"R{suffix}", "mask", scores, setup.mask_name, title=title)
    (_add_hardmax if scale == sympy.oo else _add_softmax)(builder, scores, suffix, setup)
    if mask is not None and scale != sympy.oo:
        builder.add_mistake(
            f"A{suffix}",
            "the mask was applied after the softmax",
            _masked_after_softmax(builder, unmasked, setup),
        )
    inputs = (f"A{suffix}", v) if rows else (v, f"A{suffix}")
    return builder.add_step(
        f"H{suffix}", "product", *inputs, title="the outputs: weighted means of the values"
    )


def _width(builder: SolutionBuilder, q: str, setup: AttentionSetup) -> int:
    return builder.values[q].cols if setup.tokens_as_rows else builder.values[q].rows


def add_scores(builder: SolutionBuilder, q: str, k: str, suffix: str, setup: AttentionSetup) -> str:
    """Add the scores of every query-key pair; return the name of the step.

    >>> builder = SolutionBuilder("none", {"Q": [[2]], "K": [[3]]})
    >>> builder.values[add_scores(builder, "Q", "K", "", AttentionSetup())]
    Matrix([[6]])
    """
    if not isinstance(setup.score, str) or setup.score not in SCORE_WEIGHTS:
        hint = suggestion(str(setup.score), SCORE_WEIGHTS)
        raise WorkError(
            f"score: needs one of {', '.join(SCORE_WEIGHTS)}, got {setup.score!r}{hint}"
        )
    missing = [name for name in SCORE_WEIGHTS[setup.score] if name not in builder.values]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the score {setup.score}, got none")
    rows, title = setup.tokens_as_rows, "the scores of each query and key"
    if setup.score == "additive":
        p = _add_product(
            builder, f"P{suffix}", q, "W_1", rows, "each query, projected for the score"
        )
        g = _add_product(builder, f"G{suffix}", k, "W_2", rows, "each key, projected for the score")
        rule = "additive scores" if rows else "additive scores, columns"
        return builder.add_step(f"S{suffix}", rule, p, g, "V_a", title=title)
    if setup.score == "bilinear":
        q = _add_product(
            builder, f"P{suffix}", q, "W_B", rows, "each query, projected into key space"
        )
    rule = "product with transpose" if rows else "transpose times"
    return builder.add_step(f"S{suffix}", rule, *((q, k) if rows else (k, q)), title=title)


def _add_product(
    builder: SolutionBuilder, name: str, x: str, weight: str, rows: bool, title: str
) -> str:
    return builder.add_step(name, "product", *((x, weight) if rows else (weight, x)), title=title)


def _add_scale(builder: SolutionBuilder, width: int, setup: AttentionSetup) -> Any:
    """The scale, given or default: 1/√d for the dot product, 1 for learned scores."""
    if setup.scale_name not in builder.values:
        default = 1 / sympy.sqrt(width) if setup.score == "dot" else sympy.Integer(1)
        builder.add_given(
            setup.scale_name, M([[default if setup.scale is None else parse_number(setup.scale)]])
        )
    result = builder.values[setup.scale_name][0, 0]
    if result.is_negative:
        raise WorkError(f"scale: needs 0 or more, got {result}; try the keys negated")
    if result.is_number and MAX_SCALE < result < sympy.oo:
        raise WorkError(f'scale: needs at most {MAX_SCALE}, got {result}; try "inf", the limit')
    return result


def _add_bias(
    builder: SolutionBuilder, scores: str, suffix: str, setup: AttentionSetup
) -> str | None:
    """Name of the bias matrix, if any; B has one row per query, as masks have."""
    shape = builder.values[scores].shape
    queries, keys = shape if setup.tokens_as_rows else shape[::-1]
    name = next(
        (candidate for candidate in (f"B{suffix}", "B") if candidate in builder.values), None
    )
    if name is None:
        if "rel" not in builder.values:
            return None
        title = "the bias of each pair, by distance"
        name = builder.add_step(f"B{suffix}", f"relative {queries}×{keys}", "rel", title=title)
    return (
        name
        if setup.tokens_as_rows
        else builder.add_step(f"D{suffix}", "transpose", name, title="one column per query")
    )


def _add_softmax(builder: SolutionBuilder, scores: str, suffix: str, setup: AttentionSetup) -> None:
    e, n = f"E{suffix}", f"N{suffix}"
    builder.add_step(e, "exp", scores, title="the exponentials")
    builder.add_step(n, f"sum over {setup.softmax_axis}", e, title="the normaliser of each query")
    title = "the weights: they sum to 1 for each query"
    builder.add_step(f"A{suffix}", f"divide {setup.softmax_axis}", e, n, title=title)


def _add_hardmax(builder: SolutionBuilder, scores: str, suffix: str, setup: AttentionSetup) -> None:
    top = builder.add_step(
        f"M{suffix}",
        f"largest of {setup.softmax_axis}",
        scores,
        title="the largest score of each query",
    )
    title = "the weights in the limit β → ∞: divided equally among the largest scores"
    builder.add_step(f"A{suffix}", f"hardmax {setup.softmax_axis}", scores, top, title=title)


def _masked_after_softmax(builder: SolutionBuilder, unmasked: str, setup: AttentionSetup) -> Matrix:
    """Mistake: masked after the softmax, so that the remaining weights do not sum to 1."""
    scores = builder.values[unmasked].evalf(20)
    e = scores.applyfunc(sympy.exp)
    e = e if setup.tokens_as_rows else e.T
    mask = (
        builder.values[setup.mask_name]
        if setup.tokens_as_rows
        else builder.values[setup.mask_name].T
    )
    sums = [sum(e.row(i)) for i in range(e.rows)]
    result = M(e.rows, e.cols, lambda i, j: e[i, j] / sums[i] * mask[i, j])
    return result if setup.tokens_as_rows else M(result.T)


def _add_remarks(builder: SolutionBuilder, rows: bool) -> None:
    """Remark which key has the largest weight of each query."""
    weights = builder.values["A"] if rows else builder.values["A"].T
    if weights.free_symbols:
        return
    is_self = "Y" not in builder.values
    sentences, self_attending = [], []
    for i in range(weights.rows):
        best = argmax_ties(weights.row(i))
        if weights[i, best[0]] == 0:
            sentences.append(f"query {i + 1} attends to nothing")
            continue
        keys = " and ".join(str(j + 1) for j in best)
        top, word = format_decimal(weights[i, best[0]], 3), "key" if len(best) == 1 else "keys"
        verb = "" if sentences else " attends most"
        sentences.append(f"query {i + 1}{verb} to {word} {keys} ({top})")
        self_attending += [i + 1] if i in best else []
    line = ", ".join(sentences)
    builder.add_remark(f"{line[0].upper()}{line[1:]}.")
    if is_self and weights.rows == weights.cols:
        queries = ", ".join(map(str, self_attending)) or "none"
        builder.add_remark(f"Queries with their largest weight on themselves: {queries}.")


def mask_matrix(spec: Any, queries: int, keys: int) -> Matrix | None:
    """Parse a mask into a matrix of 0 and 1 with one row per query.

    >>> mask_matrix("causal, local:1", 3, 3)
    Matrix([
    [1, 0, 0],
    [1, 1, 0],
    [0, 1, 1]])
    """
    if spec is None or spec == "none":
        return None
    if isinstance(spec, str):
        kinds = re.split(r"\s*[,+]\s*|\s+", spec.strip())
        windows = [re.fullmatch(r"local:(\d+)", kind) for kind in kinds]
        if not all(kind == "causal" or radius for kind, radius in zip(kinds, windows, strict=True)):
            raise WorkError(
                f"mask: needs none, causal, local:N, both, or rows of 0 and 1, got {spec!r}"
            )
        radius = min(
            (int(candidate[1]) for candidate in windows if candidate), default=queries + keys
        )
        lookahead = 0 if "causal" in kinds else keys
        return M(
            [
                [int(abs(i - j) <= radius and j - i <= lookahead) for j in range(keys)]
                for i in range(queries)
            ]
        )
    result = parse_matrix(spec, "mask")
    if result.shape != (queries, keys) or set(result) - {0, 1}:
        raise WorkError(
            f"mask: needs {queries} rows of {keys} numbers, each 0 or 1, got "
            f"{result.rows}×{result.cols}"
        )
    return result
