"""Solutions by hand: published numbers, the ops in float64, every step from its inputs."""

import pytest
import sympy
import torch
from by_hand import cells, floats
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import ShapeError, WorkError
from regard.work.exact import parse_matrix
from regard.work.families.attention import solve_attention
from regard.work.families.recurrent.cells import solve_recurrent
from regard.work.show.formats import as_latex, as_markdown
from regard.work.show.text import as_text

FX1 = work.read_problem("three-tokens")


def assert_near(value, want, within=1e-9):
    torch.testing.assert_close(
        floats(value), torch.tensor(want, dtype=torch.float64), rtol=0, atol=within
    )


# ---- worked numbers


def test_three_tokens_unscaled():
    worked = work.solve(FX1)
    half = sympy.Rational(1, 2)
    assert worked["Q"] == sympy.Matrix([[1, 3], [-1, 1], [5 * half, -2]])
    assert worked["S"] == sympy.Matrix(
        [
            [3 * half, -5 * half, 8],
            [-7 * half, -7 * half, 6],
            [17 * half, 8, -sympy.Rational(53, 4)],
        ]
    )
    assert_near(worked["A"][0, :], [[0.00150114098270, 0.0000274943561602, 0.998471364661]], 1e-12)
    assert_near(
        worked["H"],
        [[-1.99321737122, -2.99758332239], [-1.99958837656, -2.99943869531]]
        + [[1.17860765850, 0.198933008878]],
    )


def test_three_tokens_with_the_usual_scale():
    worked = work.solve({k: v for k, v in FX1.items() if k != "scale"})
    assert worked.given["β"][0] == 1 / sympy.sqrt(2)
    assert_near(
        worked["H"],
        [[-1.95448427625, -2.98148430080], [-1.99336357915, -2.99095033521]]
        + [[1.05617612718, 0.356344083559]],
    )


def test_three_tokens_under_a_causal_mask():
    worked = work.solve(FX1 | {"mask": "causal"})
    assert worked["A"][0, :] == sympy.Matrix([[1, 0, 0]])
    assert worked["A"][1, :] == sympy.Matrix([[1, 1, 0]]) / 2  # an exact tie
    assert worked["H"][1, :] == sympy.Matrix([[3, 3]]) / 4


def test_plain_attention():
    e = sympy.E
    worked = work.solve(work.read_problem("self-attention"))
    assert worked["A"][0, :] == sympy.Matrix([[e, e, 1]]) / (2 * e + 1)
    assert_near(worked["H"][0, :], [[0.8446376, 0.7330436]], 1e-7)


def test_a_gru_and_an_lstm_of_one_number():
    gru = work.solve(work.read_problem("gru"))
    assert gru["r_1"][0] == sympy.Rational(1, 2)
    assert_near(gru["z_1"], [[0.6513548647]], 1e-9)
    assert_near(gru["g_1"], [[0.6351489524]], 1e-9)
    assert_near(gru["h_1"], [[0.5880299276]], 1e-9)
    lstm = work.solve(work.read_problem("lstm"))
    for name, want in {"i_1": 0.6513548647, "f_1": 0.7310585786, "o_1": 0.6224593312}.items():
        assert_near(lstm[name], [[want]], 1e-9)
    assert_near(lstm["c_1"], [[0.6665315477]], 1e-9)
    assert_near(lstm["h_1"], [[0.3627031374]], 1e-9)


# ---- properties

small = st.fractions(-3, 3, max_denominator=4).map(str)


@settings(max_examples=15, deadline=None)
@given(cells(3, 2, small), cells(2, 2, small), cells(2, 2, small), cells(2, 3, small),
       st.sampled_from([None, 1, "1/2"]), st.sampled_from([None, "causal", "local:1"]))  # fmt: skip
def test_attention_is_that_of_the_ops(x, wq, wk, wv, scale, mask):
    told = {"X": x, "W_Q": wq, "W_K": wk, "W_V": wv}
    worked = solve_attention(told, scale=scale, mask=mask)
    q, k, v = (floats(worked[name]) for name in "QKV")
    masks = {None: None, "causal": rg.Causal(), "local:1": rg.Local(1)}
    want, _ = rg.attend(
        q, k, v, mask=masks[mask], scale=float(worked.given["β"][0]), backend="reference"
    )
    torch.testing.assert_close(floats(worked["H"]), want, rtol=1e-12, atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(
    cells(3, 2, small),
    cells(2, 2, small),
    cells(2, 2, small),
    cells(2, 3, small),
    st.sampled_from([None, "causal"]),
)
def test_columns_are_rows_transposed(x, wq, wk, wv, mask):
    def turned(m):
        return [list(row) for row in zip(*m, strict=True)]

    told = {"X": x, "W_Q": wq, "W_K": wk, "W_V": wv}
    rows = solve_attention(told, mask=mask)
    columns = solve_attention(
        {name: turned(m) for name, m in told.items()}, convention="columns", mask=mask
    )
    for name in "SAH":
        assert floats(columns[name].T).allclose(floats(rows[name]), rtol=1e-12, atol=1e-12)


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_cells_are_those_of_torch(data):
    told = {"x": data.draw(cells(2, 2, small))}
    told |= {name: data.draw(cells(2, 2, small)) for name in ("W_i", "W_f", "W_c", "W_o")}
    told |= {name: data.draw(cells(2, 2, small)) for name in ("U_i", "U_f", "U_c", "U_o")}
    worked = solve_recurrent("lstm", told)
    cell = torch.nn.LSTMCell(2, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([floats(worked[f"W_{g}"]) for g in "ifco"]))
        cell.weight_hh.copy_(torch.cat([floats(worked[f"U_{g}"]) for g in "ifco"]))
        h = c = torch.zeros(1, 2, dtype=torch.float64)
        for t in (1, 2):
            h, c = cell(floats(worked[f"x_{t}"]).T, (h, c))
    torch.testing.assert_close(floats(worked["h_2"]).T, h, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module", params=work.problem_names())
def worked(request):
    return work.solve(work.read_problem(request.param))


def test_every_step_follows_from_its_stated_inputs(worked):
    assert worked.recompute() == worked.values()
    stated = worked.to_json()
    symbols = stated.get("symbols", ())
    values = {n: parse_matrix(v, n, symbols) for n, v in stated["given"].items()}
    assert values == worked.given
    assert [(step["name"], step["rule"], step["inputs"]) for step in stated["steps"]] == [
        (step.name, step.rule, list(step.inputs)) for step in worked.steps
    ]


def test_every_problem_can_be_shown_in_every_way(worked):
    text = as_text(worked)
    assert all(step.formula in text for step in worked.steps)
    assert as_markdown(worked).count("$$") % 2 == 0
    tex = as_latex(worked)
    assert tex.isascii()
    assert tex.count("{") == tex.count("}")
    assert tex.count("\\[") == tex.count("\\]")


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        ({"family": "atention", "given": {"X": 1}}, WorkError, "got 'atention'; try attention"),
        ({"family": "attention"}, WorkError, "given: needs a table of numbers"),
        ({"given": {"X": [[1]]}, "scal": 1}, WorkError, "got 'scal'; try scale"),
        ({"given": {"X": [[1]]}, "mask": "casual"}, WorkError, "mask: needs none, causal"),
        ({"given": {"X": [["x"]]}}, WorkError, "number: needs one such as 3"),
        ({"given": {"X": [["9**9**9"]]}}, WorkError, "number: needs one such as 3"),
        ({"given": {"X": [[1, 2]], "W_Q": [[1, 2]]}}, ShapeError,
         "got X 1×2 and W_Q 1×2; try X W_Qᵀ"),
        ({"family": "gru", "given": {"x": 1}}, WorkError, "needs W_z, U_z"),
    ],
)  # fmt: skip
def test_what_cannot_be_worked_is_reported(problem, kind, message):
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        work.solve(problem)
