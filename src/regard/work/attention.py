"""Attention by hand: plain, or with queries, keys and values; either way of writing matrices."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.numbers import matrix, number
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, Working


def attention(
    given: Mapping[str, Any],
    *,
    convention: str = "rows",
    scale: Any = None,
    mask: Any = None,
) -> Solution:
    """Attention over a few tokens, every step exact.

    rows:     Q = X W_Q, …   A = softmax(β Q Kᵀ) over each row,      H = A V
    columns:  Q = W_Q X, …   A = softmax(β Kᵀ Q) down each column,   H = V A

    Given is X (and W_Q, W_K, W_V: without one, X itself is taken), or Q, K and V at once. The
    scale β is 1/√d if not said; `mask` is causal, local:N or a matrix of 0 and 1, a row a query.

    >>> worked = attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> worked["A"][0, 0]
    E/(1 + 2*E)
    """
    if convention not in ("rows", "columns"):
        raise WorkError(f"convention: needs rows or columns, got {convention!r}")
    rows = convention == "rows"
    work = Working("attention", {k: v for k, v in given.items() if v is not None})
    q, k, v = (_projected(work, letter, rows) for letter in "QKV")
    name = work.step(
        "S",
        "product with transpose" if rows else "transpose times",
        *((q, k) if rows else (k, q)),
        says="the scores: how well each query fits each key",
    )
    features = work.values[q].cols if rows else work.values[q].rows
    beta = 1 / sympy.sqrt(features) if scale is None else scale
    work.given["β"] = work.values["β"] = M([[number(beta)]])
    if work.values["β"] != M([[1]]):
        name = work.step("Z", "scale", name, "β", says="scaled, so that no score drowns the others")
    seen = mask_of(mask, *(work.values[name].shape if rows else work.values[name].T.shape))
    if seen is not None:
        work.given["mask"] = work.values["mask"] = seen if rows else M(seen.T)
        name = work.step("R", "mask", name, "mask", says="what may not be seen is set to -inf")
    _softmax(work, name, rows)
    work.step(
        "H",
        "product",
        *(("A", v) if rows else (v, "A")),
        says="the outputs: each a mixture of the values",
    )
    return work.done()


def _softmax(work: Working, scores: str, rows: bool) -> None:
    work.step("E", "exp", scores, says="the exponentials")
    along = "rows" if rows else "columns"
    work.step("N", f"sum over {along}", "E", says="what each query divides by")
    work.step("A", f"divide {along}", "E", "N", says="the weights: for each query they add up to 1")


def _projected(work: Working, letter: str, rows: bool) -> str:
    """The name of the queries, keys or values; projected here unless they were given."""
    if letter in work.values:
        return letter
    if "X" not in work.values:
        raise WorkError(f"given: needs X, or Q, K and V, got {', '.join(work.given) or 'nothing'}")
    weight = f"W_{letter}"
    if weight not in work.values:
        return "X"
    words = {"Q": "queries: what each token asks", "K": "keys: what each answers to"}
    return work.step(
        letter,
        "product",
        *(("X", weight) if rows else (weight, "X")),
        says=f"the {words.get(letter, 'values: what each gives')}",
    )


def mask_of(told: Any, queries: int, keys: int) -> Matrix | None:
    """A mask as a matrix of 0 and 1, a row a query: causal, local:N, or as given.

    >>> mask_of("causal", 2, 3)
    Matrix([
    [1, 0, 0],
    [1, 1, 0]])
    """
    if told is None or told == "none":
        return None
    if isinstance(told, str):
        kind, _, reach = told.partition(":")
        if kind == "causal" and not reach:
            return M([[int(j <= i) for j in range(keys)] for i in range(queries)])
        if kind == "local" and reach.strip().isdigit():
            far = int(reach)
            return M([[int(abs(i - j) <= far) for j in range(keys)] for i in range(queries)])
        raise WorkError(f"mask: needs none, causal, local:N or rows of 0 and 1, got {told!r}")
    found = matrix(told, "mask")
    if found.shape != (queries, keys) or set(found) - {0, 1}:
        raise WorkError(
            f"mask: needs {queries} rows of {keys} numbers, each 0 or 1, got "
            f"{found.rows}×{found.cols}"
        )
    return found
