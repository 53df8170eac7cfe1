"""Attention by hand: any score, mask and bias, self or cross, either way of writing matrices."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError, suggestion
from regard.work.given import need_known
from regard.work.numbers import decimal, matrix, number
from regard.work.rules import M, Matrix
from regard.work.rules.scores import largest
from regard.work.solution import Solution, Working

SCORES = {"dot": (), "bilinear": ("W_B",), "additive": ("W_1", "W_2", "V_a")}

SHARPEST = 10_000  # exponentials of more have more digits than they are worth


class Ways(NamedTuple):
    """How an attention is done: matrices by rows or columns, its scale, mask, score, and names.

    >>> Ways().score
    'dot'
    """

    rows: bool = True
    scale: Any = None
    mask: Any = None
    score: str = "dot"
    beta: str = "β"  # how the scale is called
    seen: str = "mask"  # and the mask

    @property
    def along(self) -> str:
        """Where the weights of one query lie."""
        return "rows" if self.rows else "columns"


def attention(
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

    >>> worked = attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> worked["A"][0, 0]
    E/(1 + 2*E)
    """
    need_known("attention", given)
    ways = Ways(is_rows(convention), scale, mask, score)
    work = Working("attention", {k: v for k, v in given.items() if v is not None})
    attend(work, *project(work, ways.rows), ways=ways)
    _wrong_source(work, ways.rows)
    _read_map(work, ways.rows)
    return work.done()


def cross(
    given: Mapping[str, Any],
    *,
    convention: str = "rows",
    scale: Any = None,
    mask: Any = None,
    score: str = "dot",
) -> Solution:
    """Cross-attention: queries from X (what is being written), keys and values from Y (the memory).

    Q = X W_Q,   K = Y W_K,   V = Y W_V,   H = softmax(β Q Kᵀ) V

    >>> cross({"X": [[1]], "Y": [[2], [2]]})["A"]
    Matrix([[1/2, 1/2]])
    """
    missing = [name for name in ("X", "Y") if given.get(name) is None]
    if missing:
        raise WorkError(
            f"given: needs X for the queries and Y for keys and values, got no "
            f"{' and no '.join(missing)}; try the family attention for one sequence"
        )
    solved = attention(given, convention=convention, scale=scale, mask=mask, score=score)
    return replace(solved, family="cross")


def _wrong_source(work: Working, rows: bool) -> None:
    """Who takes keys and values from the queries' own tokens makes this of them."""
    for letter in "KV":
        x, weight = work.values.get("X"), work.values.get(f"W_{letter}")
        if "Y" in work.given and letter not in work.given and x is not None and weight is not None:
            says = "they were taken from X, the queries' tokens, not from Y"
            work.slip(letter, says, M(x * weight) if rows else M(weight * x))


def is_rows(convention: str) -> bool:
    """Whether tokens are rows; else they are columns.

    >>> is_rows("columns")
    False
    """
    if convention not in ("rows", "columns"):
        raise WorkError(f"convention: needs rows or columns, got {convention!r}")
    return convention == "rows"


def project(
    work: Working,
    rows: bool = True,
    at: str = "",
    of: tuple[str, str] = ("X", "Y"),
    by: str = "W_{}",
) -> tuple[str, str, str]:
    """The names of queries, keys and values, projected by the weights `by` unless they were given.

    >>> work = Working("none", {"X": [[1, 2]], "W_Q": [[1], [1]]})
    >>> project(work)
    ('Q', 'X', 'X')
    """
    memory = of[1] if of[1] in work.values else of[0]
    q, k, v = (
        _projected(work, letter, source, rows, at, by.format(letter))
        for letter, source in zip("QKV", (of[0], memory, memory), strict=True)
    )
    return q, k, v


def _projected(work: Working, letter: str, source: str, rows: bool, at: str, weight: str) -> str:
    name = f"{letter}{at}"
    if name in work.values:
        return name
    if source not in work.values:
        raise WorkError(f"given: needs X, or Q, K and V, got {', '.join(work.given) or 'nothing'}")
    if weight not in work.values:
        return source
    words = {"Q": "queries: what each token asks", "K": "keys: what each answers to"}
    says = f"the {words.get(letter, 'values: what each gives')}"
    return linear(work, name, source, weight, rows=rows, says=says)


def linear(work: Working, name: str, x: str, weight: str, *, says: str, rows: bool = True) -> str:
    """Tokens times weights, with the bias b of the same index where one is given.

    >>> work = Working("none", {"X": [[1, 2]], "W_F": [[1], [1]], "b_F": [[4]]})
    >>> work.values[linear(work, "F", "X", "W_F", says="the hidden layer")]
    Matrix([[7]])
    """
    bias = f"b{weight[1:]}" if weight.startswith("W") else f"b_{weight}"
    parts = (x, weight) if rows else (weight, x)
    if bias not in work.values:
        return work.step(name, "product", *parts, says=says)
    return work.step(name, "affine" if rows else "affine, columns", *parts, bias, says=says)


def attend(work: Working, q: str, k: str, v: str, at: str = "", ways: Ways | None = None) -> str:
    """From queries, keys and values to the outputs, in the steps of a hand; names end in `at`.

    >>> work = Working("none", {"Q": [[1]], "K": [[1], [1]], "V": [[0], [4]]})
    >>> work.values[attend(work, "Q", "K", "V", "_1")]
    Matrix([[2]])
    """
    ways = ways or Ways()
    return weigh(work, scored(work, q, k, at, ways), _width(work, q, ways), v, at, ways)


def weigh(work: Working, scores: str, width: int, v: str, at: str, ways: Ways) -> str:
    """From scores to the outputs; `width`, that of a query, makes the usual scale.

    >>> work = Working("none", {"S": [[0, 0]], "V": [[0], [4]]})
    >>> work.values[weigh(work, "S", 1, "V", "", Ways())]
    Matrix([[2]])
    """
    rows, sharp = ways.rows, _scale(work, width, ways)
    if sharp != sympy.oo and sharp != 1:
        sharper = sharp.is_number and sharp > 1
        says = "scaled, so that " + (
            "the best stand out" if sharper else "no score drowns the others"
        )
        scores = work.step(f"Z{at}", "scale", scores, ways.beta, says=says)
    bias = _bias(work, scores, at, ways)
    if bias is not None:
        if sharp == sympy.oo:
            raise WorkError("scale: needs to be finite where a bias is added, got inf")
        scores = work.step(f"C{at}", "add", scores, bias, says="with the bias of each pair")
    shape = work.values[scores].shape
    seen = mask_of(ways.mask, *(shape if rows else shape[::-1]))
    free = scores
    if seen is not None:
        if ways.seen not in work.values:
            work.give(ways.seen, seen if rows else seen.T)
        says = "what may not be seen is set to -inf"
        scores = work.step(f"R{at}", "mask", scores, ways.seen, says=says)
    (_hard if sharp == sympy.oo else _soft)(work, scores, at, ways)
    if seen is not None and sharp != sympy.oo:
        work.slip(f"A{at}", "the mask was applied after the softmax", _late(work, free, ways))
    mixed = (f"A{at}", v) if rows else (v, f"A{at}")
    return work.step(f"H{at}", "product", *mixed, says="the outputs: each a mixture of the values")


def _width(work: Working, q: str, ways: Ways) -> int:
    return work.values[q].cols if ways.rows else work.values[q].rows


def scored(work: Working, q: str, k: str, at: str, ways: Ways) -> str:
    """The step that scores every query against every key; its name comes back.

    >>> work = Working("none", {"Q": [[2]], "K": [[3]]})
    >>> work.values[scored(work, "Q", "K", "", Ways())]
    Matrix([[6]])
    """
    if not isinstance(ways.score, str) or ways.score not in SCORES:
        hint = suggestion(str(ways.score), SCORES)
        raise WorkError(f"score: needs one of {', '.join(SCORES)}, got {ways.score!r}{hint}")
    missing = [name for name in SCORES[ways.score] if name not in work.values]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the score {ways.score}, got none")
    rows, says = ways.rows, "the scores: how well each query fits each key"
    if ways.score == "additive":
        p = _times(work, f"P{at}", q, "W_1", rows, "each query as the score sees it")
        g = _times(work, f"G{at}", k, "W_2", rows, "each key as the score sees it")
        by = "additive scores" if rows else "additive scores, columns"
        return work.step(f"S{at}", by, p, g, "V_a", says=says)
    if ways.score == "bilinear":
        q = _times(work, f"P{at}", q, "W_B", rows, "each query carried to the side of the keys")
    by = "product with transpose" if rows else "transpose times"
    return work.step(f"S{at}", by, *((q, k) if rows else (k, q)), says=says)


def _times(work: Working, name: str, x: str, weight: str, rows: bool, says: str) -> str:
    return work.step(name, "product", *((x, weight) if rows else (weight, x)), says=says)


def _scale(work: Working, width: int, ways: Ways) -> Any:
    """The scale, given or found: 1/√d for the dot product, 1 for scores that learn their own."""
    if ways.beta not in work.values:
        usual = 1 / sympy.sqrt(width) if ways.score == "dot" else sympy.Integer(1)
        work.give(ways.beta, M([[usual if ways.scale is None else number(ways.scale)]]))
    found = work.values[ways.beta][0, 0]
    if found.is_negative:
        raise WorkError(f"scale: needs 0 or more, got {found}; try the keys negated")
    if found.is_number and SHARPEST < found < sympy.oo:
        raise WorkError(f'scale: needs at most {SHARPEST}, got {found}; try "inf", the limit')
    return found


def _bias(work: Working, scores: str, at: str, ways: Ways) -> str | None:
    """The name of what is added to the scores, a row a query as masks are."""
    shape = work.values[scores].shape
    queries, keys = shape if ways.rows else shape[::-1]
    name = next((one for one in (f"B{at}", "B") if one in work.values), None)
    if name is None:
        if "rel" not in work.values:
            return None
        says = "the bias of each pair, by how far the key is from the query"
        name = work.step(f"B{at}", f"relative {queries}×{keys}", "rel", says=says)
    return name if ways.rows else work.step(f"D{at}", "transpose", name, says="a column a query")


def _soft(work: Working, scores: str, at: str, ways: Ways) -> None:
    e, n = f"E{at}", f"N{at}"
    work.step(e, "exp", scores, says="the exponentials")
    work.step(n, f"sum over {ways.along}", e, says="what each query divides by")
    says = "the weights: for each query they add up to 1"
    work.step(f"A{at}", f"divide {ways.along}", e, n, says=says)


def _hard(work: Working, scores: str, at: str, ways: Ways) -> None:
    top = work.step(f"M{at}", f"largest of {ways.along}", scores, says="the best score of a query")
    says = "the weights in the limit of a large β: the best take all, in equal shares"
    work.step(f"A{at}", f"share {ways.along}", scores, top, says=says)


def _late(work: Working, free: str, ways: Ways) -> Matrix:
    """The weights of someone who masks after the softmax: those left no longer add up to 1."""
    scores = work.values[free].evalf(20)
    e = scores.applyfunc(sympy.exp)
    e = e if ways.rows else e.T
    kept = work.values[ways.seen] if ways.rows else work.values[ways.seen].T
    sums = [sum(e.row(i)) for i in range(e.rows)]
    found = M(e.rows, e.cols, lambda i, j: e[i, j] / sums[i] * kept[i, j])
    return found if ways.rows else M(found.T)


def _read_map(work: Working, rows: bool) -> None:
    """Say who looks at whom; a sentence that follows from the weights."""
    weights = work.values["A"] if rows else work.values["A"].T
    if weights.free_symbols:
        return
    own = "Y" not in work.values
    told, self_seeing = [], []
    for i in range(weights.rows):
        best = largest(weights.row(i))
        if weights[i, best[0]] == 0:
            told.append(f"query {i + 1} sees nothing")
            continue
        keys = " and ".join(str(j + 1) for j in best)
        most, word = decimal(weights[i, best[0]], 3), "key" if len(best) == 1 else "keys"
        looks = "" if told else " looks most"
        told.append(f"query {i + 1}{looks} at {word} {keys} ({most})")
        self_seeing += [i + 1] if i in best else []
    line = ", ".join(told)
    work.remark(f"{line[0].upper()}{line[1:]}.")
    if own and weights.rows == weights.cols:
        who = ", ".join(map(str, self_seeing)) or "none"
        work.remark(f"Those that look most at themselves: {who}.")


def mask_of(told: Any, queries: int, keys: int) -> Matrix | None:
    """A mask as a matrix of 0 and 1, a row a query: causal, local:N, both, or as given.

    >>> mask_of("causal, local:1", 3, 3)
    Matrix([
    [1, 0, 0],
    [1, 1, 0],
    [0, 1, 1]])
    """
    if told is None or told == "none":
        return None
    if isinstance(told, str):
        kinds = re.split(r"\s*[,+]\s*|\s+", told.strip())
        reaches = [re.fullmatch(r"local:(\d+)", kind) for kind in kinds]
        if not all(kind == "causal" or far for kind, far in zip(kinds, reaches, strict=True)):
            raise WorkError(
                f"mask: needs none, causal, local:N, both, or rows of 0 and 1, got {told!r}"
            )
        far = min((int(one[1]) for one in reaches if one), default=queries + keys)
        ahead = 0 if "causal" in kinds else keys
        return M(
            [
                [int(abs(i - j) <= far and j - i <= ahead) for j in range(keys)]
                for i in range(queries)
            ]
        )
    found = matrix(told, "mask")
    if found.shape != (queries, keys) or set(found) - {0, 1}:
        raise WorkError(
            f"mask: needs {queries} rows of {keys} numbers, each 0 or 1, got "
            f"{found.rows}×{found.cols}"
        )
    return found
