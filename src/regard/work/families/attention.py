"""Attention by hand: any score, mask and bias, self or cross, either way of writing matrices."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError, nearest
from regard.work.exact.numbers import format_decimal, parse_matrix, parse_number
from regard.work.families.names import ATTENTION_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family, weight_shapes
from regard.work.rules import M, Matrix
from regard.work.rules.scores import argmax_ties
from regard.work.solution import Solution, SolutionBuilder

SCORE_WEIGHTS = {"dot": (), "bilinear": ("W_B",), "additive": ("W_1", "W_2", "V_a")}

MAX_SCALE = 10_000  # exponentials of more have more digits than they are worth
_QUESTIONS = ("Q", "K", "V", "S", "Z", "R", "A", "H")


class AttentionSetup(NamedTuple):
    """How an attention is done: matrices by rows or columns, its scale, mask, score, and names.

    >>> AttentionSetup().score
    'dot'
    """

    tokens_as_rows: bool = True
    scale: Any = None
    mask: Any = None
    score: str = "dot"
    scale_name: str = "β"  # how the scale is called
    mask_name: str = "mask"  # and the mask

    @property
    def softmax_axis(self) -> str:
        """Where the weights of one query lie."""
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
    """Attention over a few tokens, every step exact.

    rows:     Q = X W_Q, …   A = softmax(β Q Kᵀ) over each row,      H = A V
    columns:  Q = W_Q X, …   A = softmax(β Kᵀ Q) down each column,   H = V A

    Given is X (and W_Q, W_K, W_V: without one, X itself is taken), or Q, K and V at once; with Y
    too, keys and values come from Y. The scale β is 1/√d if not said; 0 and "inf" are the limits.
    `mask` is causal, local:N, both, or a matrix of 0 and 1, a row a query; `score` is dot, bilinear
    (W_B) or additive (W_1, W_2, V_a). A bias is added where given: B, or rel, by distance.

    >>> worked = solve_attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> worked["A"][0, 0]
    E/(1 + 2*E)
    """
    check_given("attention", given)
    ways = AttentionSetup(is_row_convention(convention), scale, mask, score)
    work = SolutionBuilder("attention", {k: v for k, v in given.items() if v is not None})
    add_attention(work, *project_qkv(work, ways.tokens_as_rows), setup=ways)
    _wrong_source(work, ways.tokens_as_rows)
    _read_map(work, ways.tokens_as_rows)
    return work.build()


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
    """Cross-attention: queries from X (what is being written), keys and values from Y (the memory).

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


def _wrong_source(work: SolutionBuilder, rows: bool) -> None:
    """Who takes keys and values from the queries' own tokens makes this of them."""
    for letter in "KV":
        x, weight = work.values.get("X"), work.values.get(f"W_{letter}")
        if "Y" in work.given and letter not in work.given and x is not None and weight is not None:
            says = "they were taken from X, the queries' tokens, not from Y"
            work.add_mistake(letter, says, M(x * weight) if rows else M(weight * x))


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
    """The names of queries, keys and values, projected by the weights `by` unless they were given.

    >>> work = SolutionBuilder("none", {"X": [[1, 2]], "W_Q": [[1], [1]]})
    >>> project_qkv(work)
    ('Q', 'X', 'X')
    """
    memory = sources[1] if sources[1] in builder.values else sources[0]
    q, k, v = (
        _projected(builder, letter, source, tokens_as_rows, suffix, weight_pattern.format(letter))
        for letter, source in zip("QKV", (sources[0], memory, memory), strict=True)
    )
    return q, k, v


def _projected(
    work: SolutionBuilder, letter: str, source: str, rows: bool, at: str, weight: str
) -> str:
    name = f"{letter}{at}"
    if name in work.values:
        return name
    if source not in work.values:
        raise WorkError(f"given: needs X, or Q, K and V, got {', '.join(work.given) or 'nothing'}")
    if weight not in work.values:
        return source
    words = {"Q": "queries: what each token asks", "K": "keys: what each answers to"}
    says = f"the {words.get(letter, 'values: what each gives')}"
    return add_linear(work, name, source, weight, tokens_as_rows=rows, title=says)


def add_linear(
    builder: SolutionBuilder,
    name: str,
    x: str,
    weight: str,
    *,
    title: str,
    tokens_as_rows: bool = True,
) -> str:
    """Tokens times weights, with the bias b of the same index where one is given.

    >>> work = SolutionBuilder("none", {"X": [[1, 2]], "W_F": [[1], [1]], "b_F": [[4]]})
    >>> work.values[add_linear(work, "F", "X", "W_F", title="the hidden layer")]
    Matrix([[7]])
    """
    bias = f"b{weight[1:]}" if weight.startswith("W") else f"b_{weight}"
    parts = (x, weight) if tokens_as_rows else (weight, x)
    if bias not in builder.values:
        return builder.add_step(name, "product", *parts, title=title)
    return builder.add_step(
        name, "affine" if tokens_as_rows else "affine, columns", *parts, bias, title=title
    )


def add_attention(
    builder: SolutionBuilder,
    q: str,
    k: str,
    v: str,
    suffix: str = "",
    setup: AttentionSetup | None = None,
) -> str:
    """From queries, keys and values to the outputs, in the steps of a hand; names end in `at`.

    >>> work = SolutionBuilder("none", {"Q": [[1]], "K": [[1], [1]], "V": [[0], [4]]})
    >>> work.values[add_attention(work, "Q", "K", "V", "_1")]
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
    """From scores to the outputs; `width`, that of a query, makes the usual scale.

    >>> work = SolutionBuilder("none", {"S": [[0, 0]], "V": [[0], [4]]})
    >>> work.values[add_softmax_output(work, "S", 1, "V", "", AttentionSetup())]
    Matrix([[2]])
    """
    rows, sharp = setup.tokens_as_rows, _scale(builder, head_dim, setup)
    if sharp != sympy.oo and sharp != 1:
        sharper = sharp.is_number and sharp > 1
        says = "scaled, so that " + (
            "the best stand out" if sharper else "no score drowns the others"
        )
        scores = builder.add_step(f"Z{suffix}", "scale", scores, setup.scale_name, title=says)
    bias = _bias(builder, scores, suffix, setup)
    if bias is not None:
        if sharp == sympy.oo:
            raise WorkError("scale: needs to be finite where a bias is added, got inf")
        scores = builder.add_step(
            f"C{suffix}", "add", scores, bias, title="with the bias of each pair"
        )
    shape = builder.values[scores].shape
    seen = parse_mask(setup.mask, *(shape if rows else shape[::-1]))
    free = scores
    if seen is not None:
        if setup.mask_name not in builder.values:
            builder.add_given(setup.mask_name, seen if rows else seen.T)
        says = "what may not be seen is set to -inf"
        scores = builder.add_step(f"R{suffix}", "mask", scores, setup.mask_name, title=says)
    (_hard if sharp == sympy.oo else _soft)(builder, scores, suffix, setup)
    if seen is not None and sharp != sympy.oo:
        builder.add_mistake(
            f"A{suffix}", "the mask was applied after the softmax", _late(builder, free, setup)
        )
    mixed = (f"A{suffix}", v) if rows else (v, f"A{suffix}")
    return builder.add_step(
        f"H{suffix}", "product", *mixed, title="the outputs: each a mixture of the values"
    )


def _width(work: SolutionBuilder, q: str, ways: AttentionSetup) -> int:
    return work.values[q].cols if ways.tokens_as_rows else work.values[q].rows


def add_scores(builder: SolutionBuilder, q: str, k: str, suffix: str, setup: AttentionSetup) -> str:
    """The step that scores every query against every key; its name comes back.

    >>> work = SolutionBuilder("none", {"Q": [[2]], "K": [[3]]})
    >>> work.values[add_scores(work, "Q", "K", "", AttentionSetup())]
    Matrix([[6]])
    """
    if not isinstance(setup.score, str) or setup.score not in SCORE_WEIGHTS:
        hint = nearest(str(setup.score), SCORE_WEIGHTS)
        raise WorkError(
            f"score: needs one of {', '.join(SCORE_WEIGHTS)}, got {setup.score!r}{hint}"
        )
    missing = [name for name in SCORE_WEIGHTS[setup.score] if name not in builder.values]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the score {setup.score}, got none")
    rows, says = setup.tokens_as_rows, "the scores: how well each query fits each key"
    if setup.score == "additive":
        p = _times(builder, f"P{suffix}", q, "W_1", rows, "each query as the score sees it")
        g = _times(builder, f"G{suffix}", k, "W_2", rows, "each key as the score sees it")
        by = "additive scores" if rows else "additive scores, columns"
        return builder.add_step(f"S{suffix}", by, p, g, "V_a", title=says)
    if setup.score == "bilinear":
        q = _times(
            builder, f"P{suffix}", q, "W_B", rows, "each query carried to the side of the keys"
        )
    by = "product with transpose" if rows else "transpose times"
    return builder.add_step(f"S{suffix}", by, *((q, k) if rows else (k, q)), title=says)


def _times(work: SolutionBuilder, name: str, x: str, weight: str, rows: bool, says: str) -> str:
    return work.add_step(name, "product", *((x, weight) if rows else (weight, x)), title=says)


def _scale(work: SolutionBuilder, width: int, ways: AttentionSetup) -> Any:
    """The scale, given or found: 1/√d for the dot product, 1 for scores that learn their own."""
    if ways.scale_name not in work.values:
        usual = 1 / sympy.sqrt(width) if ways.score == "dot" else sympy.Integer(1)
        work.add_given(
            ways.scale_name, M([[usual if ways.scale is None else parse_number(ways.scale)]])
        )
    found = work.values[ways.scale_name][0, 0]
    if found.is_negative:
        raise WorkError(f"scale: needs 0 or more, got {found}; try the keys negated")
    if found.is_number and MAX_SCALE < found < sympy.oo:
        raise WorkError(f'scale: needs at most {MAX_SCALE}, got {found}; try "inf", the limit')
    return found


def _bias(work: SolutionBuilder, scores: str, at: str, ways: AttentionSetup) -> str | None:
    """The name of what is added to the scores, a row a query as masks are."""
    shape = work.values[scores].shape
    queries, keys = shape if ways.tokens_as_rows else shape[::-1]
    name = next((one for one in (f"B{at}", "B") if one in work.values), None)
    if name is None:
        if "rel" not in work.values:
            return None
        says = "the bias of each pair, by how far the key is from the query"
        name = work.add_step(f"B{at}", f"relative {queries}×{keys}", "rel", title=says)
    return (
        name
        if ways.tokens_as_rows
        else work.add_step(f"D{at}", "transpose", name, title="a column a query")
    )


def _soft(work: SolutionBuilder, scores: str, at: str, ways: AttentionSetup) -> None:
    e, n = f"E{at}", f"N{at}"
    work.add_step(e, "exp", scores, title="the exponentials")
    work.add_step(n, f"sum over {ways.softmax_axis}", e, title="what each query divides by")
    says = "the weights: for each query they add up to 1"
    work.add_step(f"A{at}", f"divide {ways.softmax_axis}", e, n, title=says)


def _hard(work: SolutionBuilder, scores: str, at: str, ways: AttentionSetup) -> None:
    top = work.add_step(
        f"M{at}", f"largest of {ways.softmax_axis}", scores, title="the best score of a query"
    )
    says = "the weights in the limit of a large β: the best take all, in equal shares"
    work.add_step(f"A{at}", f"hardmax {ways.softmax_axis}", scores, top, title=says)


def _late(work: SolutionBuilder, free: str, ways: AttentionSetup) -> Matrix:
    """The weights of someone who masks after the softmax: those left no longer add up to 1."""
    scores = work.values[free].evalf(20)
    e = scores.applyfunc(sympy.exp)
    e = e if ways.tokens_as_rows else e.T
    kept = work.values[ways.mask_name] if ways.tokens_as_rows else work.values[ways.mask_name].T
    sums = [sum(e.row(i)) for i in range(e.rows)]
    found = M(e.rows, e.cols, lambda i, j: e[i, j] / sums[i] * kept[i, j])
    return found if ways.tokens_as_rows else M(found.T)


def _read_map(work: SolutionBuilder, rows: bool) -> None:
    """Say who looks at whom; a sentence that follows from the weights."""
    weights = work.values["A"] if rows else work.values["A"].T
    if weights.free_symbols:
        return
    own = "Y" not in work.values
    told, self_seeing = [], []
    for i in range(weights.rows):
        best = argmax_ties(weights.row(i))
        if weights[i, best[0]] == 0:
            told.append(f"query {i + 1} sees nothing")
            continue
        keys = " and ".join(str(j + 1) for j in best)
        most, word = format_decimal(weights[i, best[0]], 3), "key" if len(best) == 1 else "keys"
        looks = "" if told else " looks most"
        told.append(f"query {i + 1}{looks} at {word} {keys} ({most})")
        self_seeing += [i + 1] if i in best else []
    line = ", ".join(told)
    work.add_remark(f"{line[0].upper()}{line[1:]}.")
    if own and weights.rows == weights.cols:
        who = ", ".join(map(str, self_seeing)) or "none"
        work.add_remark(f"Those that look most at themselves: {who}.")


def parse_mask(spec: Any, queries: int, keys: int) -> Matrix | None:
    """A mask as a matrix of 0 and 1, a row a query: causal, local:N, both, or as given.

    >>> parse_mask("causal, local:1", 3, 3)
    Matrix([
    [1, 0, 0],
    [1, 1, 0],
    [0, 1, 1]])
    """
    if spec is None or spec == "none":
        return None
    if isinstance(spec, str):
        kinds = re.split(r"\s*[,+]\s*|\s+", spec.strip())
        reaches = [re.fullmatch(r"local:(\d+)", kind) for kind in kinds]
        if not all(kind == "causal" or far for kind, far in zip(kinds, reaches, strict=True)):
            raise WorkError(
                f"mask: needs none, causal, local:N, both, or rows of 0 and 1, got {spec!r}"
            )
        far = min((int(one[1]) for one in reaches if one), default=queries + keys)
        ahead = 0 if "causal" in kinds else keys
        return M(
            [
                [int(abs(i - j) <= far and j - i <= ahead) for j in range(keys)]
                for i in range(queries)
            ]
        )
    found = parse_matrix(spec, "mask")
    if found.shape != (queries, keys) or set(found) - {0, 1}:
        raise WorkError(
            f"mask: needs {queries} rows of {keys} numbers, each 0 or 1, got "
            f"{found.rows}×{found.cols}"
        )
    return found
