"""Self- and cross-attention: any score, mask and bias, tokens as rows or columns."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.exact import format_decimal, parse_matrix, parse_number
from regard.work.families.registry import check_choice, check_required, family
from regard.work.rules import M, Matrix
from regard.work.rules.scores import argmax_ties
from regard.work.solution import Solution, SolutionBuilder

SCORE_WEIGHTS = {"dot": (), "bilinear": ("W_B",), "additive": ("W_1", "W_2", "V_a")}

MAX_SCALE = 10_000  # exact exponentials of more get too long


class AttentionSetup(NamedTuple):
    """Options of an attention: convention, scale, mask, score, and names of scale and mask."""

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

    def order_factors(self, left: str, right: str) -> tuple[str, str]:
        """The factors of a product with tokens as rows, in the order of this convention."""
        return (left, right) if self.tokens_as_rows else (right, left)

    def with_token_rows(self, value: Matrix) -> Matrix:
        """A matrix of this convention with tokens as rows, or back."""
        return value if self.tokens_as_rows else M(value.T)


ROW_SETUP = AttentionSetup()


@family("attention")
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
        scale: β, a number or "inf" for hard attention; if None, 1/√d for the score "dot", else 1.
        mask: "causal", "local:N", both, or a matrix of 0 and 1, written as the scores are.
        score: "dot", "bilinear" (needs W_B) or "additive" (needs W_1, W_2, V_a).

    >>> solution = solve_attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> solution["A"][0, 0]
    E/(1 + 2*E)
    """
    check_choice("convention", convention, ("rows", "columns"))
    setup = AttentionSetup(convention == "rows", scale, mask, score)
    builder = SolutionBuilder("attention", dict(given))
    add_attention(builder, *project_qkv(builder, setup), setup=setup)
    _add_remarks(builder, setup)
    return builder.build()


@family("cross-attention")
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
    missing = [name for name in ("X", "Y") if name not in given]
    if missing:
        raise WorkError(
            f"given: needs X for the queries and Y for keys and values, got no "
            f"{' and no '.join(missing)}; try the family attention for one sequence"
        )
    solved = solve_attention(given, convention=convention, scale=scale, mask=mask, score=score)
    return replace(solved, family="cross-attention")


def project_qkv(
    builder: SolutionBuilder,
    setup: AttentionSetup = ROW_SETUP,
    suffix: str = "",
    sources: tuple[str, str] = ("X", "Y"),
    weight_pattern: str = "W_{}",
) -> tuple[str, str, str]:
    """Add the projections that are not given; return the names of queries, keys and values.

    >>> builder = SolutionBuilder("none", {"X": [[1, 2]], "W_Q": [[1], [1]]})
    >>> project_qkv(builder)
    ('Q', 'X', 'X')
    """
    x = sources[0]
    memory = sources[1] if sources[1] in builder.values else x
    names = []
    kinds = {"Q": ("queries", x), "K": ("keys", memory), "V": ("values", memory)}
    for letter, (kind, source) in kinds.items():
        name, weight = f"{letter}{suffix}", weight_pattern.format(letter)
        if name not in builder.values:
            if source not in builder.values:
                got = ", ".join(builder.given) or "nothing"
                raise WorkError(f"given: needs X, or Q, K and V, got {got}")
            if weight not in builder.values:
                name = source
            else:
                add_linear(builder, name, source, weight, setup=setup, title=f"the {kind}")
        names.append(name)
    q, k, v = names
    return q, k, v


def add_linear(
    builder: SolutionBuilder,
    name: str,
    x: str,
    weight: str,
    *,
    title: str,
    setup: AttentionSetup = ROW_SETUP,
) -> str:
    """Add a linear layer; its bias has the name of the weight with b for W, and is optional.

    >>> builder = SolutionBuilder("none", {"X": [[1, 2]], "W_F": [[1], [1]], "b_F": [[4]]})
    >>> builder.values[add_linear(builder, "F", "X", "W_F", title="the hidden layer")]
    Matrix([[7]])
    """
    bias = f"b{weight[1:]}" if weight.startswith("W") else f"b_{weight}"
    inputs = setup.order_factors(x, weight)
    if bias not in builder.values:
        return builder.add_step(name, "product", *inputs, title=title)
    rule = "affine" if setup.tokens_as_rows else "affine, columns"
    return builder.add_step(name, rule, *inputs, bias, title=title)


def add_attention(
    builder: SolutionBuilder,
    q: str,
    k: str,
    v: str,
    suffix: str = "",
    setup: AttentionSetup = ROW_SETUP,
) -> str:
    """Add the steps from queries, keys and values to the outputs; step names end in `suffix`.

    >>> builder = SolutionBuilder("none", {"Q": [[1]], "K": [[1], [1]], "V": [[0], [4]]})
    >>> builder.values[add_attention(builder, "Q", "K", "V", "_1")]
    Matrix([[2]])
    """
    scores = add_scores(builder, q, k, suffix, setup)
    width = setup.with_token_rows(builder.values[q]).cols
    return add_softmax_output(builder, scores, width, v, suffix, setup)


def add_softmax_output(
    builder: SolutionBuilder, scores: str, head_dim: int, v: str, suffix: str, setup: AttentionSetup
) -> str:
    """Add the steps from scores to outputs; `head_dim` sets the default scale.

    >>> builder = SolutionBuilder("none", {"S": [[0, 0]], "V": [[0], [4]]})
    >>> builder.values[add_softmax_output(builder, "S", 1, "V", "", AttentionSetup())]
    Matrix([[2]])
    """
    scale = _add_scale(builder, head_dim, setup)
    if scale not in (sympy.oo, 1):
        inputs = (scores, setup.scale_name)
        scores = builder.add_step(f"Z{suffix}", "scale", *inputs, title="the scaled scores")
    bias = _add_bias(builder, scores, suffix, setup)
    if bias is not None:
        if scale == sympy.oo:
            raise WorkError("scale: needs to be finite where a bias is added, got inf")
        title = "with the bias of each pair"
        scores = builder.add_step(f"C{suffix}", "add", scores, bias, title=title)
    queries, keys = setup.with_token_rows(builder.values[scores]).shape
    mask = mask_matrix(setup.mask, queries, keys, setup.tokens_as_rows)
    unmasked = scores
    if mask is not None:
        if setup.mask_name not in builder.values:
            builder.add_given(setup.mask_name, setup.with_token_rows(mask))
        title = "masked scores are set to -inf"
        scores = builder.add_step(f"R{suffix}", "mask", scores, setup.mask_name, title=title)
    axis, a = setup.softmax_axis, f"A{suffix}"
    if scale == sympy.oo:
        limit = "the weights in the limit β → ∞: divided equally among the largest scores"
        builder.add_steps(
            (f"M{suffix}", f"largest of {axis}", scores, "the largest score of each query"),
            (a, f"hardmax {axis}", f"{scores} M{suffix}", limit),
        )
    else:
        e, n = f"E{suffix}", f"N{suffix}"
        builder.add_steps(
            (e, "exp", scores, "the exponentials"),
            (n, f"sum over {axis}", e, "the normaliser of each query"),
        )
        empty = [i for i, x in enumerate(builder.values[n], 1) if x == 0]
        title = "the weights: they sum to 1 for each query"
        if empty:
            queries = f"{'query' if len(empty) == 1 else 'queries'} {', '.join(map(str, empty))}"
            title += f" but {queries}, which may see no key: 0 / 0 is undefined, set to 0"
            builder.add_remark(
                f"The softmax of {queries} is undefined, as every key is masked: torch's softmax "
                "returns NaN, fused attention kernels and Regard return zeros."
            )
        builder.add_step(a, f"divide {axis}", e, n, title=title)
        if mask is not None:
            wrong = _masked_after_softmax(builder, unmasked, setup)
            builder.add_mistake(a, "the mask was applied after the softmax", wrong)
    title = "the outputs: weighted means of the values"
    return builder.add_step(f"H{suffix}", "product", *setup.order_factors(a, v), title=title)


def add_scores(builder: SolutionBuilder, q: str, k: str, suffix: str, setup: AttentionSetup) -> str:
    """Add the scores of every query-key pair; return the name of the step.

    >>> builder = SolutionBuilder("none", {"Q": [[2]], "K": [[3]]})
    >>> builder.values[add_scores(builder, "Q", "K", "", AttentionSetup())]
    Matrix([[6]])
    """
    check_choice("score", setup.score, SCORE_WEIGHTS)
    check_required(f"the score {setup.score}", builder.values, *SCORE_WEIGHTS[setup.score])

    def project(name: str, x: str, weight: str, title: str) -> str:
        return builder.add_step(name, "product", *setup.order_factors(x, weight), title=title)

    name, title = f"S{suffix}", "the scores of each query and key"
    if setup.score == "additive":
        q = project(f"P{suffix}", q, "W_1", "each query, projected for the score")
        k = project(f"G{suffix}", k, "W_2", "each key, projected for the score")
        rule = "additive scores" if setup.tokens_as_rows else "additive scores, columns"
        return builder.add_step(name, rule, q, k, "V_a", title=title)
    if setup.score == "bilinear":
        q = project(f"P{suffix}", q, "W_B", "each query, projected into key space")
    rule = "product with transpose" if setup.tokens_as_rows else "transpose times"
    return builder.add_step(name, rule, *setup.order_factors(q, k), title=title)


def _add_scale(builder: SolutionBuilder, width: int, setup: AttentionSetup) -> Any:
    """The scale, given or default: 1/√d for the dot product, 1 for learned scores."""
    if setup.scale_name not in builder.values:
        default = 1 / sympy.sqrt(width) if setup.score == "dot" else sympy.Integer(1)
        builder.add_given(
            setup.scale_name, default if setup.scale is None else parse_number(setup.scale)
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
    """Name of the bias matrix, if any; B is written as the scores are."""
    name = next((name for name in (f"B{suffix}", "B") if name in builder.values), None)
    if name is None:
        if "rel" not in builder.values:
            return None
        queries, keys = setup.with_token_rows(builder.values[scores]).shape
        title = "the bias of each pair, by distance"
        name = builder.add_step(f"B{suffix}", f"relative {queries}×{keys}", "rel", title=title)
        if not setup.tokens_as_rows:
            title = "one column per query"
            name = builder.add_step(f"D{suffix}", "transpose", name, title=title)
    return name


def _masked_after_softmax(builder: SolutionBuilder, unmasked: str, setup: AttentionSetup) -> Matrix:
    """Mistake: masked after the softmax, so that the remaining weights do not sum to 1."""
    e = setup.with_token_rows(builder.values[unmasked].evalf(20).applyfunc(sympy.exp))
    mask = setup.with_token_rows(builder.values[setup.mask_name])
    sums = [sum(e.row(i)) for i in range(e.rows)]
    return setup.with_token_rows(M(e.rows, e.cols, lambda i, j: e[i, j] / sums[i] * mask[i, j]))


def _add_remarks(builder: SolutionBuilder, setup: AttentionSetup) -> None:
    """Remark which key has the largest weight of each query."""
    weights = setup.with_token_rows(builder.values["A"])
    if weights.free_symbols:
        return
    sentences, self_attending = [], []
    for i in range(weights.rows):
        best = argmax_ties(weights.row(i))
        if weights[i, best[0]] == 0:
            sentences.append(f"query {i + 1} attends to nothing")
            continue
        keys = " and ".join(str(j + 1) for j in best)
        top, word = _below_one(weights[i, best[0]]), "key" if len(best) == 1 else "keys"
        verb = "" if sentences else " attends most"
        sentences.append(f"query {i + 1}{verb} to {word} {keys} ({top})")
        self_attending += [i + 1] if i in best else []
    line = ", ".join(sentences)
    builder.add_remark(f"{line[0].upper()}{line[1:]}.")
    if "Y" not in builder.values and weights.rows == weights.cols:
        queries = ", ".join(map(str, self_attending)) or "none"
        builder.add_remark(f"Queries with their largest weight on themselves: {queries}.")


def _below_one(weight: sympy.Expr) -> str:
    """A weight to three digits, or as many as show that it is not 1."""
    rounded = (format_decimal(weight, digits) for digits in range(3, 8))
    texts = (text for text in rounded if weight == 1 or text.strip("0.") != "1")
    return next(texts, f"1 - {format_decimal(1 - weight, 1)}")


def mask_matrix(spec: Any, queries: int, keys: int, query_rows: bool = True) -> Matrix | None:
    """Parse a mask into a matrix of 0 and 1 with one row per query.

    A matrix is written as the scores are: one row per query, or per key without `query_rows`.

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
        radius = min((int(match[1]) for match in windows if match), default=queries + keys)
        lookahead = 0 if "causal" in kinds else keys
        return M(queries, keys, lambda i, j: int(bool(abs(i - j) <= radius and j - i <= lookahead)))
    result = parse_matrix(spec, "mask")
    rows, columns = (queries, keys) if query_rows else (keys, queries)
    if result.shape != (rows, columns) or set(result) - {0, 1}:
        raise WorkError(
            f"mask: needs {rows} rows of {columns} numbers, each 0 or 1, as the scores have, got "
            f"{result.rows}×{result.cols}"
        )
    return result if query_rows else M(result.T)
