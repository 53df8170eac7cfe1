"""The delta rule of linear attention, token by token."""

from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact import parse_matrix
from regard.work.families.registry import family
from regard.work.rules import M, Matrix
from regard.work.solution import Solution, SolutionBuilder


@family("delta-rule")
def solve_delta_rule(given: Mapping[str, Any]) -> Solution:
    """Gated delta rule: a state S, (key × value), that each token reads, decays and writes to.

    F_t = α_t S_{t-1},   p_t = k_t F_t,   r_t = v_t - p_t
    S_t = F_t + β_t k_tᵀ r_t,   y_t = q_t S_t

    Q, K and V have one row per token; alpha (the decay) and beta (the write strength) have one
    number per token, 1 by default; S is the initial state, zeros by default.

    >>> solution = solve_delta_rule({"Q": [[1], [1]], "K": [[1], [1]], "V": [[3], [5]]})
    >>> solution["y_2"]  # the second value replaces the first
    Matrix([[5]])
    """
    names = "QKV"
    q, k, v = tables = [parse_matrix(given[name], name) for name in names]
    if len({x.rows for x in tables}) > 1 or q.cols != k.cols:
        shapes = ", ".join(f"{n} {x.rows}×{x.cols}" for n, x in zip(names, tables, strict=True))
        raise WorkError(f"K: needs a row per token in Q, K and V, and the width of Q, got {shapes}")
    gates = {name: _per_token(given, name, q.rows) for name in ("alpha", "beta") if name in given}
    start = parse_matrix(given.get("S", [[0] * v.cols] * k.cols), "S")
    if start.shape != (k.cols, v.cols):
        raise WorkError(f"S: needs {k.cols}×{v.cols}, got {start.rows}×{start.cols}")
    rows = {
        f"{name.lower()}_{t + 1}": M(x.row(t))
        for t in range(q.rows)
        for name, x in zip(names, tables, strict=True)
    }
    numbers = {
        f"{name}_{t + 1}": M([[x]]) for name, gate in gates.items() for t, x in enumerate(gate)
    }
    builder = SolutionBuilder("delta-rule", {"S_0": start} | rows | numbers)
    for t in range(1, q.rows + 1):
        _add_token(builder, t, gates)
    _add_map(builder, q, k, gates)
    return builder.build()


def _per_token(given: Mapping[str, Any], name: str, tokens: int) -> list[Any]:
    numbers = list(parse_matrix(given[name], name))
    if len(numbers) != tokens:
        raise WorkError(f"{name}: needs one number for each of {tokens} tokens, got {len(numbers)}")
    return numbers


def _add_token(builder: SolutionBuilder, t: int, gates: Mapping[str, Any]) -> None:
    left = f"S_{t - 1}"
    if "alpha" in gates:
        title = "the state, decayed"
        left = builder.add_step(f"F_{t}", "scale", left, f"alpha_{t}", title=title)
    builder.add_steps(
        (f"p_{t}", "product", f"k_{t} {left}", "what the state predicts for the key"),
        (f"r_{t}", "prediction error", f"v_{t} p_{t}", "what is new: the value less that"),
        (f"w_{t}", "transpose times", f"k_{t} r_{t}", "the write: it adds r to what k reads"),
    )
    write = f"w_{t}"
    if "beta" in gates:
        write = builder.add_step(f"d_{t}", "scale", write, f"beta_{t}", title="as strong as β")
    builder.add_steps(
        (f"S_{t}", "add", f"{left} {write}", f"the state after token {t}"),
        (f"y_{t}", "product", f"q_{t} S_{t}", f"the output of token {t}"),
    )


def _add_map(
    builder: SolutionBuilder, q: Matrix, k: Matrix, gates: Mapping[str, list[Any]]
) -> None:
    """The map W as a remark: the outputs for one-hot values and an empty state."""
    tokens = range(q.rows)
    state, rows = sympy.zeros(k.cols, q.rows), []
    for t in tokens:
        state = gates["alpha"][t] * state if "alpha" in gates else state
        one_hot = sympy.Matrix(1, q.rows, lambda _, j, t=t: int(t == j))
        beta = gates["beta"][t] if "beta" in gates else 1
        state = state + beta * k.row(t).T * (one_hot - k.row(t) * state)
        rows.append(", ".join(str(sympy.simplify(x)) for x in q.row(t) * state))
    rows = "; ".join(rows)
    builder.add_remark(
        f"From an empty state the outputs are y = W V with W = [{rows}]: a map from left to right, "
        "as of causal attention, but signed and without a softmax."
    )
    builder.add_remark(
        "Without the write of token j output t moves by |w_tj| ‖r_j‖: later writes see the state "
        "without it, and that is in W."
    )
