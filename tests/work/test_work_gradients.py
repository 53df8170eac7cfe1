"""Backpropagation through time by hand: autograd's gradients, every path, clipping."""

import random
import re

import pytest
import torch
from by_hand import floats
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.exact import evaluate_digits, parse_matrix
from regard.work.families.recurrent.bptt import solve_bptt
from regard.work.marking.findings import first_wrong
from regard.work.rules import get_rule

SIZE, STEPS = 2, 3
GATES = {"rnn": [""], "gru": ["_z", "_r", ""], "lstm": ["_i", "_f", "_o", "_c"]}


def drawn(cell, data, inputs=2, size=SIZE, steps=STEPS, bias=True):
    # decimals: exact halves and quarters tie too often to show a wrong sign
    small = st.integers(-30, 30).map(lambda x: f"{x / 20}")

    def cells(rows, columns):
        return [[data.draw(small) for _ in range(columns)] for _ in range(rows)]

    given_values = {"x": cells(inputs, steps), "h": cells(size, 1)}
    if cell == "lstm":
        given_values["c"] = cells(size, 1)
    for gate in GATES[cell]:
        given_values |= {f"W{gate}": cells(size, inputs), f"U{gate}": cells(size, size)}
        if bias:
            given_values[f"b{gate}"] = cells(size, 1)
    return given_values


def run(cell, given_values, h, c, x, p):
    """One step in torch, from the definitions of the cells."""

    def gate(index, state):
        return p[f"W{index}"] @ x + p[f"U{index}"] @ state + p.get(f"b{index}", 0)

    if cell == "rnn":
        return gate("", h).tanh(), c
    if cell == "gru":
        z, r = gate("_z", h).sigmoid(), gate("_r", h).sigmoid()
        new = (p["W"] @ x + r * (p["U"] @ h) + p.get("b", 0)).tanh()
        return (1 - z) * h + z * new, c
    i, f, o = (gate(index, h).sigmoid() for index in ("_i", "_f", "_o"))
    c = f * c + i * gate("_c", h).tanh()
    return o * c.tanh(), c


def autograd(cell, given_values, loss):
    values = {name: floats(parse_matrix(value)) for name, value in given_values.items()}
    leaves = {name: v.requires_grad_() for name, v in values.items() if name != "x"}
    h, c, states = leaves["h"], leaves.get("c"), []
    for t in range(values["x"].shape[1]):
        h, c = run(cell, given_values, h, c, values["x"][:, t : t + 1], leaves)
        states.append(h)
    loss(states).backward()
    return {name: v.grad for name, v in leaves.items() if v.grad is not None}


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_every_gradient_matches_autograd(cell, data):
    told = drawn(cell, data)
    direct = [["1/2", 0, 1], [-1, 0, "3/4"]]
    worked = solve_bptt(told | {"dh": direct}, cell=cell)
    e = floats(parse_matrix(direct))
    want = autograd(cell, told, lambda hs: sum((e[:, [t]] * h).sum() for t, h in enumerate(hs)))
    for name, gradient in want.items():
        found = worked[f"d{name}_0" if name in "hc" else f"d{name}"]
        torch.testing.assert_close(floats(found), gradient, rtol=1e-9, atol=1e-9)


class Drawn(random.Random):  # in place of hypothesis, whose first numbers are all 0
    def draw(self, strategy):
        return f"{self.randint(-30, 30) / 20}"


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_formula_of_each_gradient_in_one_line_gives_it(cell):
    worked = solve_bptt(drawn(cell, Drawn(0)) | {"dh": [["1/2", 0, 1], [-1, 0, "3/4"]]}, cell=cell)
    values = {name: floats(value) for name, value in worked.values().items()}
    names = {name for name in values if re.fullmatch(r"d[WUb](_[a-z])?", name)}
    assert set(worked.formulas) == names
    for name, line in worked.formulas.items():
        said, term = line.split(" = Σ_t ")
        assert said == f"∂J/∂{name[1:]}"
        for old, new in (("∂J/∂", "d"), ("_(t-1)", "_p"), ("²", "**2"), ("∘", "*"), ("ᵀ", ".T"),
                         ("U h", "U @ h"), (") x", ") @ x"), (") h", ") @ h")):  # fmt: skip
            term = term.replace(old, new)
        total = torch.zeros_like(values[name])
        for t in range(1, STEPS + 1):
            at = {n.partition("_")[0] + "_t": x for n, x in values.items() if n.endswith(f"_{t}")}
            at |= {f"{n}_p": values[f"{n}_{t - 1}"] for n in "hc" if f"{n}_{t - 1}" in values}
            total += eval(term, {"tanh": torch.tanh, "U": values.get("U")}, at)
        torch.testing.assert_close(total, values[name], rtol=1e-9, atol=1e-9)


def test_one_line_formulas_stand_before_the_steps_in_every_format():
    worked = work.solve(work.read_problem("bptt-lstm"))
    line = "∂J/∂W_c = Σ_t (∂J/∂c_t ∘ i_t ∘ (1 - g_t²)) x_tᵀ"
    text = work.format_solution(worked)
    assert text.index(line) < text.index("1. The input gate")
    assert line not in work.format_solution(worked, only=["h_*"])
    assert line in work.format_solution(worked, only=["dW_c"])
    for fmt in ("markdown", "latex"):
        assert "\\partial J/\\partial W_{c} = \\sum_{t}" in work.format_solution(worked, fmt)
    assert "<munder><mo>∑</mo><mi>t</mi></munder>" in work.format_solution(worked, "html")
    assert worked.to_json()["formulas"]["dW_c"] == line


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_loss_may_be_a_sum_or_a_distance(cell):
    given_ = work.read_problem(f"bptt-{cell}")["given"]
    given_values = {name: value for name, value in given_.items() if name not in ("dh", "target")}
    size = 2 if cell == "rnn" else 1
    given_values["h"] = given_values.get("h", [[0]] * size)
    summed = solve_bptt(given_values, cell=cell)
    want = autograd(cell, given_values, lambda hs: hs[-1].sum())
    assert floats(summed["dW" if cell != "lstm" else "dW_i"]).allclose(
        want["W" if cell != "lstm" else "W_i"], atol=1e-12
    )
    target = [["1/3"]] * size
    far = solve_bptt(given_values | {"target": target}, cell=cell)
    distance = floats(far[f"h_{parse_matrix(given_values['x']).cols}"]) - 1 / 3
    assert float(evaluate_digits(far["J"][0], 20)) == pytest.approx(float((distance**2).sum() / 2))
    want = autograd(cell, given_values, lambda hs: ((hs[-1] - 1 / 3) ** 2).sum() / 2)
    assert floats(far["dh_0"]).allclose(want["h"], atol=1e-12)


def test_the_jacobians_of_an_rnn_are_those_of_autograd():
    given_values = {
        "x": [[1, 0, -1], [0, 1, 1]],
        "W": [["1/2", 0], [0, 1]],
        "U": [[0, 2], ["-1/2", 1]],
    }
    worked = solve_bptt(given_values)
    p = {name: floats(parse_matrix(given_values[name])) for name in "WU"}

    def last(h):
        for t in (0, 1, 2):
            h, _ = run(
                "rnn", given_values, h, None, floats(parse_matrix(given_values["x"]))[:, t], p
            )
        return h

    want = torch.autograd.functional.jacobian(last, torch.zeros(2, dtype=torch.float64))
    assert floats(worked["G_0"]).allclose(want, atol=1e-12)
    assert float(worked["n_0"][0]) == pytest.approx(float(want.norm()), abs=1e-12)
    u = p["U"]
    assert float(worked["ρ"][0]) == pytest.approx(float(torch.linalg.eigvals(u).abs().max()))
    assert float(worked["u"][0]) == pytest.approx(float(torch.linalg.matrix_norm(u, 2)))


@pytest.mark.parametrize(
    "u", [[[0, 1], [-1, 0]], [[3, 1], [0, -4]], [[1, 2, 0], [0, 1, 3], [1, 0, 1]]]
)
def test_the_spectral_radius_is_the_largest_eigenvalue(u):
    want = float(torch.linalg.eigvals(torch.tensor(u, dtype=torch.float64)).abs().max())
    assert float(get_rule("spectral radius").run(parse_matrix(u))[0]) == pytest.approx(want)


def test_the_direct_path_of_an_lstm_is_the_product_of_its_forget_gates():
    worked = work.solve(work.read_problem("bptt-lstm"))
    gates = float(worked["f_1"][0]) * float(worked["f_2"][0])
    assert float(worked["F_0"][0]) == pytest.approx(gates)
    # the whole path, by a small change of the cell before the last step, through the state too
    given_values = {k: float(worked[k][0]) for k in worked.given}

    def cell_after(c1):
        o, x, out = float(worked["o_1"][0]), given_values["x_2"], {}
        h1 = o * torch.tanh(c1)
        for g in "ifoc":
            out[g] = given_values[f"W_{g}"] * x + given_values[f"U_{g}"] * h1
        return out["f"].sigmoid() * c1 + out["i"].sigmoid() * out["c"].tanh()

    c1 = torch.tensor(float(worked["c_1"][0]), dtype=torch.float64, requires_grad=True)
    cell_after(c1).backward()
    assert c1.grad is not None
    assert float(worked["C"][0]) == pytest.approx(float(c1.grad), abs=1e-12)
    assert float(worked["C"][0]) != pytest.approx(float(worked["f_2"][0]), abs=1e-3)


def test_clipping_keeps_the_direction_and_bounds_the_norm():
    worked = work.solve(work.read_problem("bptt-rnn"))
    whole = torch.cat([floats(worked[name]).flatten() for name in ("dW", "dU")])
    cut = torch.cat([floats(worked[name]).flatten() for name in ("cW", "cU")])
    assert float(cut.norm()) == pytest.approx(0.25)
    assert float(torch.cosine_similarity(whole, cut, dim=0)) == pytest.approx(1)
    small = solve_bptt({"x": 0, "W": 1, "U": 1, "h": "1/10"}, max_grad_norm=1)
    assert small["cU"] == small["dU"]


@pytest.mark.parametrize(
    ("u", "says"),
    [(["1/2", 0], "vanishes exponentially"), ([1, 0], "the boundary"),
     ([2, 0], "it explodes where the derivatives of tanh stay above 1/ρ = 0.5"),
     (["1/2", 3], "but may grow for a few steps")],
)  # fmt: skip
def test_the_radius_says_whether_gradients_vanish(u, says):
    same, across = u
    given_values = {"x": [[0, 0], [0, 0]], "W": [[1, 0], [0, 1]], "U": [[same, across], [0, same]]}
    assert any(says in one for one in solve_bptt(given_values).remarks)


@pytest.mark.parametrize(
    ("cell", "name", "slip", "says"),
    [
        ("rnn", "dhs_3", lambda w: w["dh_3"], "the derivative of tanh was left out"),
        ("lstm", "dc_1", lambda w: w["kc_1"], "the path through h was left out"),
        ("lstm", "dh_1", lambda w: w["e_1"], "only the direct part was taken"),
        ("lstm", "dgs_2", lambda w: w["dg_2"] * w["g_2"] * (w["g_2"].applyfunc(lambda x: 1 - x)),
         "the derivative of σ was used for that of tanh"),
        ("lstm", "dW_i", lambda w: w["dWi_2"], "term 1 of the sum was left out"),
        ("rnn", "dU_2", lambda w: w["dhs_2"] * w["h_2"].T, "the state after the step was used"),
        ("gru", "k1", lambda w: w["dh_2"] * w["z_2"], "z was used for 1 - z"),
    ],
)  # fmt: skip
def test_the_slips_people_make_in_the_chain_rule_are_recognised(cell, name, slip, says):
    worked = work.solve(work.read_problem(f"bptt-{cell}"))
    wrong = [[f"{float(x):.9f}" for x in row] for row in slip(worked).evalf(20).tolist()]
    found = first_wrong(work.check_answers(worked, {name: wrong}))
    assert found is not None
    assert says in found.diagnosis


@pytest.mark.parametrize("weight", ["W_i", "U_f", "W_o", "U_c"])
@settings(max_examples=1, deadline=None)
@given(st.data())
def test_forward_mode_matches_bptt(weight, data):
    told = drawn("lstm", data, bias=False)
    direct = [["1/2", 0, 1], [-1, 0, "3/4"]]
    worked = solve_bptt(told | {"dh": direct}, cell="lstm", forward_mode=weight)
    found, want = floats(worked[f"f{weight}"]), floats(worked[f"d{weight}"])
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-15)
    assert worked.recompute() == worked.values()


@pytest.mark.parametrize(
    ("name", "slip", "says"),
    [
        ("fW_c", lambda w: w["dh_1"].T * w["Dh_1"] + w["dh_2"].T * w["Dh_2"],
         "the total ∂J/∂h_t was used instead of the direct one"),
        ("Dc_2", lambda w: w["i_2"] * (1 - w["g_2"][0] ** 2) * w["X_2"] + w["Kc_2"],
         "the path through h was left out"),
    ],
)  # fmt: skip
def test_totals_for_partials_and_a_path_left_out_are_recognised(name, slip, says):
    worked = solve_bptt(work.read_problem("bptt-lstm")["given"], cell="lstm", forward_mode="W_c")
    wrong = [[f"{float(x):.9f}" for x in row] for row in slip(worked).evalf(20).tolist()]
    found = first_wrong(work.check_answers(worked, {name: wrong}))
    assert found is not None
    assert found.diagnosis == says


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"x": [[1] * 13], "W": 1, "U": 1}, "x: needs at most 12 inputs, one column each, got 13"),
        ({"x": 1, "W": 1, "U": 1, "dh": [[1, 1]]}, "dh: needs 1 rows of 1 numbers"),
        ({"x": 1, "W": 1, "U": 1, "target": [1, 2]}, "target: needs 1 numbers, got 1×2"),
    ],
)
def test_what_does_not_fit_is_reported(given_, message):
    with pytest.raises(WorkError, match=message):
        solve_bptt(given_)


@pytest.mark.usefixtures("users_view")
def test_forward_needs_a_weight_of_an_lstm():
    given_ = work.read_problem("bptt-lstm")["given"]
    with pytest.raises(WorkError, match="forward_mode: needs one of W_i, U_i"):
        solve_bptt(given_, cell="lstm", forward_mode="W")
    with pytest.raises(WorkError, match="forward_mode: needs an lstm, got rnn"):
        solve_bptt({"x": 1, "W": 1, "U": 1}, forward_mode="W")


@pytest.mark.usefixtures("users_view")
def test_a_norm_to_clip_to_is_above_zero():
    with pytest.raises(WorkError, match="max_grad_norm: needs a norm above 0, got 0"):
        solve_bptt({"x": 1, "W": 1, "U": 1}, max_grad_norm=0)
