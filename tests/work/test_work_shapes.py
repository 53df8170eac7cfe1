"""Shape mismatches name the matrices, and the convention in which they would fit."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import ShapeError
from regard.work.exact import parse_matrix
from regard.work.families.attention import solve_attention
from regard.work.making import make_exercise
from regard.work.show.text import detect_convention, list_shapes
from regard.work.solution import SolutionBuilder


def ones(rows, columns):
    return [[1] * columns for _ in range(rows)]


def refused(given, **choices):
    with pytest.raises(ShapeError) as caught:
        solve_attention(given, **choices)
    return str(caught.value)


@pytest.mark.usefixtures("users_view")
def test_a_product_of_weights_and_values_in_the_wrong_order():
    working = SolutionBuilder("by hand", {"A": ones(6, 5), "V": ones(3, 6)})  # softmax(KᵀQ) V
    with pytest.raises(ShapeError) as caught:
        working.add_step("H", "product", "A", "V", title="the outputs")
    assert str(caught.value) == (
        "H = A V: needs as many rows in V as A has columns, 5, got A 6×5 and V 3×6; "
        "try V A (tokens are columns: W X, Kᵀ Q, V A)"
    )


@pytest.mark.usefixtures("users_view")
def test_weights_of_the_other_convention():
    d, n, h = 4, 3, 2
    as_columns = {"X": ones(d, n), "W_Q": ones(h, d), "W_K": ones(h, d), "W_V": ones(h, d)}
    values = refused(as_columns)
    assert values.startswith("Q = X W_Q: needs as many rows in W_Q as X has columns, 3, got X 4×3")
    assert values.endswith("try W_Q X (tokens are columns: W X, Kᵀ Q, V A)")
    assert solve_attention(as_columns, convention="columns")["H"].shape == (h, n)
    as_rows = {"X": ones(n, d), "W_Q": ones(d, h), "W_K": ones(d, h), "W_V": ones(d, h)}
    assert refused(as_rows, convention="columns").endswith(
        "try X W_Q (tokens are rows: X W, Q Kᵀ, A V)"
    )
    turned = as_rows | {"W_Q": ones(h, d)}
    assert refused(turned).endswith("try X W_Qᵀ, as W_Q is written for the other convention")


@pytest.mark.usefixtures("users_view")
def test_queries_and_keys_of_other_sizes():
    values = refused({"Q": ones(4, 5), "K": ones(4, 6), "V": ones(3, 6)})
    assert values == (
        "S = Q Kᵀ: needs as many columns in K as Q has columns, 5, got Q 4×5 and K 4×6; "
        "try Kᵀ Q (tokens are columns: W X, Kᵀ Q, V A)"
    )


@pytest.mark.usefixtures("users_view")
def test_sums_name_their_parts_too():
    working = SolutionBuilder("by hand", {"a": ones(1, 2), "b": ones(2, 1)})
    with pytest.raises(
        ShapeError, match=r"c = a \+ b: needs two of one shape, got a 1×2 and b 2×1"
    ):
        working.add_step("c", "add", "a", "b", title="together")


@settings(max_examples=40, deadline=None)
@given(*[st.integers(1, 4)] * 4, st.sampled_from(
    ["product", "product with transpose", "transpose times"]))  # fmt: skip
def test_what_is_proposed_does_meet(a, b, c, d, by):
    working = SolutionBuilder("by hand", {"X": ones(a, b), "W": ones(c, d)})
    try:
        working.add_step("Y", by, "X", "W", title="a product")
    except ShapeError as error:
        if "try" not in str(error):
            return
        told = str(error).partition("; try ")[2].partition(",")[0].partition(" (")[0].split()
        shapes = {"X": (a, b), "W": (c, d)}
        left, right = (shapes[one[0]][:: -1 if "ᵀ" in one else 1] for one in told)
        assert left[1] == right[0]


def test_the_table_says_the_convention_and_each_size():
    shown = CliRunner().invoke(app, ["work", "three-tokens", "--shapes"]).output.splitlines()
    assert shown[0] == "tokens are rows: X W, Q Kᵀ, A V"
    assert shown[1].split() == ["X", "3×4", "given"]
    assert shown[-1].split() == ["H", "3×2", "A", "V:", "3×3", "times", "3×2"]
    columns = work.solve(work.read_problem("column-convention"))
    assert detect_convention(columns) == "tokens are columns: W X, Kᵀ Q, V A"


@pytest.mark.parametrize("name", ["three-tokens", "column-convention", "gru", "lstm"])
def test_the_table_has_every_matrix(name):
    worked = work.solve(work.read_problem(name))
    values = {name: shape for name, shape, _ in list_shapes(worked)}
    assert values == {n: f"{v.rows}×{v.cols}" for n, v in worked.values().items()}


@pytest.mark.parametrize(("problem", "hint"), [
    ({"given": {"X": [[1, 0, 2], [0, 1, 1]], "W_Q": [[1, 0], [0, 1], [1, 1]]}},
     "W_K as well as W_Q"),
    ({"given": {"X": [[1, 0, 2], [0, 1, 1]], "W_K": [[1, 0], [0, 1], [1, 1]]}},
     "W_Q as well as W_K"),
    ({"family": "rnn", "given": {"x": [[1, 0, 2]], "W": [[1, 0]], "U": 1}},
     "x with 2 rows, one column per time step"),
])  # fmt: skip
def test_a_hint_names_what_is_missing(problem, hint):
    with pytest.raises(ShapeError, match=f"; try {hint}$"):
        work.solve(problem)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_cell_with_vectors_as_rows_is_the_transpose(cell):
    problem = make_exercise(cell, seed=2, level=3).problem
    turned = {name: parse_matrix(x, name).T.tolist() for name, x in problem["given"].items()}
    columns = work.solve(problem)
    rows = work.solve({**problem, "convention": "rows", "given": turned})
    assert rows["h_1"] == columns["h_1"].T
    assert {name: x.T for name, x in rows.recompute().items()} == columns.values()
    assert rows.steps[0].inputs == columns.steps[0].inputs[::-1]  # x W
    assert "tokens are rows" in detect_convention(rows)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"W": [[1, 0]]}, "hx_1 = x_1 W: needs as many rows in W as x_1 has columns, 2, got x_1 "
         "1×2 and W 1×2; try x with 1 columns, one row per time step"),
        ({"b": [[1], [2]]}, "hb_1 = hs_1 + b: needs two of one shape, got hs_1 1×2 and b 2×1"),
        ({"h": [[1], [2]]}, "hh_1 = h_0 U: needs as many rows in U as h_0 has columns, 1, got h_0 "
         "2×1 and U 2×2"),
    ],
)  # fmt: skip
def test_shape_errors_of_a_cell_with_rows_speak_of_rows(more, says):
    unit = dict.fromkeys("xWU", [[1, 0], [0, 1]])
    with pytest.raises(ShapeError, match=re.escape(says)):
        work.solve({"family": "rnn", "convention": "rows", "given": unit | more})
