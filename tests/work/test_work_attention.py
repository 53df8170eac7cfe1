"""Every kind of attention by hand against the ops: limits, scores, masks, biases, cross."""

import pytest
import sympy
import torch
from by_hand import cells, floats, turned
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import WorkError
from regard.work.exact import parse_matrix
from regard.work.families.attention import solve_attention, solve_cross_attention
from regard.work.families.moments import solve_sharpness
from regard.work.marking.findings import first_wrong
from regard.work.rules import M, get_rule
from regard.work.show.text import entry_text

small = st.fractions(-2, 2, max_denominator=3).map(str)


# ---- worked numbers


def test_both_limits_of_the_scale_are_exact():
    values = {"Q": 1, "K": [[1], [2], [2], [0]], "V": [[1], [2], [4], [0]]}
    half, quarter = sympy.Rational(1, 2), sympy.Rational(1, 4)
    assert solve_attention(values, scale=0)["A"] == M([[quarter] * 4])
    assert solve_attention(values, scale="inf")["A"] == M([[0, half, half, 0]])
    columns = solve_attention(
        {"Q": 1, "K": [[1, 2, 2, 0]], "V": [[1, 2, 4, 0]]}, scale="inf", convention="columns"
    )
    assert columns["A"] == M([0, half, half, 0])


def test_a_bias_of_logarithms_makes_a_convolution():
    worked = work.solve(work.read_problem("attention-as-convolution"))
    third, quarter = sympy.Rational(1, 3), sympy.Rational(1, 4)
    assert worked["A"].row(0) == M([[2 * third, third, 0, 0]])
    assert worked["A"].row(1) == M([[quarter, 2 * quarter, quarter, 0]])


def test_the_causal_mask_is_lower_by_rows_and_upper_by_columns():
    x = [[1, 0], [0, 1], [1, 1]]
    rows = solve_attention({"X": x}, mask="causal")["R"]
    columns = solve_attention({"X": turned(x)}, mask="causal", convention="columns")["R"]
    hidden = [[rows[i, j] == -sympy.oo for j in range(3)] for i in range(3)]
    assert hidden == [[False, True, True], [False, False, True], [False, False, False]]
    assert columns == M(rows.T)


def test_a_map_is_read_in_words_that_follow_from_its_numbers():
    first, second = work.solve(work.read_problem("three-tokens")).remarks
    assert first == (
        "Query 1 attends most to key 3 (0.998), query 2 to key 3 (0.9999), "
        "query 3 to key 1 (0.622)."
    )
    assert second == "Queries with their largest weight on themselves: none."


def test_a_query_that_may_see_no_key_has_no_weights():
    worked = solve_attention({"X": [[1, 0], [0, 1]]}, mask=[[0, 0], [1, 1]])
    assert worked["A"].row(0) == M([[0, 0]])
    assert sympy.simplify(sum(worked["A"].row(1))) == 1


# ---- properties


@settings(max_examples=8, deadline=None)
@given(cells(2, 2, small), cells(3, 2, small), cells(2, 2, small), cells(2, 2, small),
       cells(2, 1, small), st.sampled_from(["additive", "bilinear", "dot"]),
       st.booleans())  # fmt: skip
def test_scores_are_those_of_the_ops(x, y, w1, w2, v, score, rows):
    told = {"X": x, "Y": y, "W_1": w1, "W_2": w2, "V_a": v, "W_B": w1}
    if not rows:
        told = {name: turned(m) for name, m in told.items()}
    worked = solve_cross_attention(told, score=score, convention="rows" if rows else "columns")
    got = {name: worked[name] if rows else worked[name].T for name in "SAH"}
    q, k, a, b, c = (floats(parse_matrix(one)) for one in (x, y, w1, w2, v))
    want = {
        "dot": lambda: rg.ops.dot(q, k),
        "bilinear": lambda: rg.ops.bilinear(q, k, a),
        "additive": lambda: rg.ops.additive(q, k, a, b, c[:, 0]),
    }[score]()
    torch.testing.assert_close(floats(got["S"]), want, rtol=1e-9, atol=1e-9)
    weights = rg.softargmax(want, 2**-0.5 if score == "dot" else 1.0)
    torch.testing.assert_close(floats(got["A"]), weights, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(floats(got["H"]), weights @ k, rtol=1e-9, atol=1e-9)


@settings(max_examples=6, deadline=None)
@given(
    cells(4, 2, small),
    cells(1, 3, small),
    st.sampled_from(["causal", "causal, local:1", "local:1+causal"]),
)
def test_masks_and_relative_biases_are_those_of_the_ops(x, rel, mask):
    worked = solve_attention({"X": x, "rel": rel}, mask=mask)
    q, row = floats(worked["X"]), floats(worked["rel"])[0]
    far = 4 if mask == "causal" else 1
    i, j = torch.arange(4)[:, None], torch.arange(4)
    seen = (j <= i) & (i - j <= far)
    bias = row[(j - i).clamp(-1, 1) + 1]
    want, _ = rg.attend(q, q, q, mask=seen, bias=bias, backend="reference")
    torch.testing.assert_close(floats(worked["H"]), want, rtol=1e-9, atol=1e-9)


@settings(max_examples=8, deadline=None)
@given(
    cells(2, 2, small),
    cells(3, 2, small),
    cells(3, 1, small),
    st.sampled_from([None, [[1, 1, 0], [0, 0, 0]]]),
)
def test_hard_attention_is_that_of_the_ops(q, k, v, mask):
    worked = solve_attention({"Q": q, "K": k, "V": v}, scale="inf", mask=mask)
    scores = floats(worked["S"])
    if mask is not None:
        scores = scores.masked_fill(torch.tensor(mask) == 0, -torch.inf)
    # in float64 two equal scores may differ in the last bit; here they are exact
    tied = torch.isclose(scores, scores.amax(-1, keepdim=True), atol=1e-12)
    want = rg.softargmax(torch.where(tied, scores.amax(-1, keepdim=True), scores), torch.inf)
    torch.testing.assert_close(floats(worked["A"]), want)


@settings(max_examples=4, deadline=None)
@given(cells(2, 2, small), cells(3, 2, small))
def test_weights_match_the_ops_and_sharpen_with_beta(q, k):
    worked = solve_sharpness({"Q": q, "K": k, "V": k}, scales=["inf", 0, "default", 3])
    scores = floats(worked["S"])
    for n, beta in enumerate((0.0, 2**-0.5, 3.0), 1):
        weights = rg.softargmax(scores, beta)
        torch.testing.assert_close(floats(worked[f"A_{n}"]), weights, rtol=1e-9, atol=1e-9)
        spread = torch.special.entr(weights).sum(-1, keepdim=True)
        torch.testing.assert_close(floats(worked[f"h_{n}"]), spread, rtol=1e-9, atol=1e-9)
    assert set(worked["A_4"]) <= {sympy.Rational(*x) for x in ((0, 1), (1, 1), (1, 2), (1, 3))}
    assert worked.remarks[-1].startswith("The entropy decreases with β")


# ---- answers


def cause(answers, solution):
    found = first_wrong(work.check_answers(solution, answers))
    assert found is not None
    return found.diagnosis


def test_a_mask_after_the_softmax_is_recognised():
    worked = solve_attention({"X": [[1, 0], [0, 1]]}, scale=1, mask="causal")
    assert cause({"A": [["0.731", 0], ["0.269", "0.731"]]}, worked) == (
        "the mask was applied after the softmax"
    )
    columns = solve_attention({"X": [[1, 0], [0, 1]]}, scale=1, mask="causal", convention="columns")
    assert "after the softmax" in cause({"A": [["0.731", "0.269"], [0, "0.731"]]}, columns)


@pytest.mark.parametrize(
    ("problem", "name", "slip"),
    [
        ("hard-attention", "A", "the first of the tied keys took all the weight"),
        ("additive", "S", "tanh was left out"),
        ("additive", "S", "the vector after tanh was left out"),
        ("cross-attention", "Z", "the scale was left out"),
    ],
)
def test_slips_of_scores_are_recognised(problem, name, slip):
    worked = work.solve(work.read_problem(problem))
    step = next(one for one in worked.steps if one.name == name)
    found = get_rule(step.rule).mistakes[slip](*(worked[one] for one in step.inputs))
    values = [[f"{float(x):.9f}" for x in row] for row in found.evalf(20).tolist()]
    assert cause({name: values}, worked) == slip


def test_keys_from_the_wrong_sequence_are_recognised():
    worked = solve_cross_attention({"X": [[1, 2]], "Y": [[3, 4]], "W_K": [[1, 0], [0, 2]]})
    assert cause({"K": [[1, 4]]}, worked) == ("X was used for Y")


def test_the_relative_bias_the_wrong_way_round_is_recognised():
    worked = solve_attention({"X": [[1], [1]], "rel": [1, 2, 3]}, scale=1)
    assert worked["B"] == M([[2, 3], [1, 2]])
    assert cause({"B": [[2, 1], [3, 2]]}, worked) == "the distance was taken as i - j"


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"given": {"X": [[1]]}, "score": "adittive"}, "got 'adittive'; try additive"),
        ({"given": {"X": [[1]]}, "score": "bilinear"}, "needs W_B for the score bilinear"),
        ({"given": {"X": [[1]]}, "scale": -1}, "scale: needs 0 or more, got -1; try the keys"),
        ({"given": {"X": [[1]]}, "scale": 10**30}, 'scale: needs at most 10000.*try "inf"'),
        ({"given": {"X": [[1]]}, "score": [1]}, "score: needs one of dot"),
        ({"given": {"X": [[1]], "rel": [1]}, "scale": "inf"}, "scale: needs to be finite"),
        ({"given": {"X": [[1]], "rel": [1, 2]}}, "rel: needs one row of an odd number"),
        ({"family": "sharpness", "given": {"X": [[1]]}, "scales": 1}, "scales: needs a list"),
        (
            {"family": "cross-attention", "given": {"X": [[1]]}},
            "got no Y; try the family attention",
        ),
    ],
)
def test_what_no_attention_can_do_is_reported(problem, message):
    with pytest.raises(Exception, match=message) as caught:
        work.solve(problem)
    assert isinstance(caught.value, WorkError | rg.errors.ShapeError)


def test_a_mask_is_written_as_the_scores_are_in_both_conventions():
    given = {"X": [[1, 2], [0, 1]]}
    past = [[1, 1], [0, 1]]  # a key per row: query 1 sees key 1, query 2 sees both
    worked = solve_attention(given, convention="columns", scale=1, mask=past)
    assert worked["mask"] == M(past)
    assert worked["R"][1, 0] == -sympy.oo
    assert worked["A"] == solve_attention(given, convention="columns", scale=1, mask="causal")["A"]


def test_a_bias_is_written_as_the_scores_are_in_both_conventions():
    given = {"Q": [[1, 2], [0, 1]], "K": [[1, 0], [1, 1]], "V": [[1, 2]]}
    bias = [[0, 5], [1, 0]]
    worked = solve_attention(given | {"B": bias}, convention="columns", scale=1)
    assert worked["C"] == worked["S"] + M(bias)


def test_a_query_without_keys_is_said_to_be_undefined():
    worked = solve_attention({"X": [[1, 2], [0, 1]]}, scale=1, mask=[[0, 0], [1, 1]])
    step = next(one for one in worked.steps if one.name == "A")
    assert "0 / 0 is undefined, set to 0" in step.title
    assert "query 1 is undefined" in worked.remarks[0]
    assert entry_text(worked, step).startswith("A₁₁ = 0 / 0, undefined, set to 0")


def test_a_weight_below_one_is_not_shown_as_one():
    remarks = solve_attention({"Q": [[1]], "K": [[9], [0]], "V": [[1], [2]]}, scale=1).remarks
    assert remarks[0] == "Query 1 attends most to key 1 (0.9999)."


def test_cross_attention_of_tokens_of_other_widths_is_solved():
    weights = {"W_Q": [[1, 0], [0, 1]], "W_K": [[1, 0], [0, 1], [1, 1]], "W_V": [[1], [0], [1]]}
    tokens = {"X": [[1, 2]], "Y": [[1, 2, 3], [0, 1, 0]]}
    assert solve_cross_attention(tokens | weights)["H"].shape == (1, 1)
