"""The delta rule by hand: the numbers of ops.mixers, its map, and mistakes that are recognised."""

import pytest
import torch
from by_hand import cells, floats
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.ops import mixers
from regard.work.exact import parse_matrix
from regard.work.families.recurrent.delta_rule import solve_delta_rule
from regard.work.marking.findings import first_wrong

small = st.integers(-6, 6).map(lambda x: f"{x}/2")
share = st.integers(1, 4).map(lambda x: f"{x}/4")
PROBLEM = work.read_problem("delta-rule")["given"]


def as_mixer(values):
    q, k, v, alpha, beta = (
        floats(parse_matrix(values[n])) for n in ("Q", "K", "V", "alpha", "beta")
    )
    state = floats(parse_matrix(values["S"]))[None, None] if "S" in values else None
    rows = (x[None, None] for x in (q, k, v, alpha[0].log(), beta[0]))
    return mixers.delta_rule(*rows, state=state)


@settings(max_examples=5, deadline=None)
@given(cells(3, 2, small), cells(3, 2, small), cells(3, 2, small), cells(2, 2, small), st.data())
def test_outputs_and_states_are_those_of_the_mixer(q, k, v, state, data):
    alpha, beta = ([data.draw(share) for _ in range(3)] for _ in range(2))
    values = {"Q": q, "K": k, "V": v, "S": state, "alpha": [alpha], "beta": [beta]}
    worked, mixer = solve_delta_rule(values), as_mixer(values)
    out = torch.cat([floats(worked[f"y_{t}"]) for t in (1, 2, 3)])
    torch.testing.assert_close(out, mixers.mix(mixer).out[0, 0])
    for t in range(3):
        want = mixers.mix_state(mixer, t)[0, 0]
        torch.testing.assert_close(floats(worked[f"S_{t + 1}"]), want)


def test_the_third_token_replaces_what_the_first_wrote():
    worked = solve_delta_rule(PROBLEM)
    assert worked["p_3"] == parse_matrix([[1, 0]])
    assert worked["r_3"] == parse_matrix([[5, 2]])
    assert worked["S_3"] == parse_matrix([[6, 2], [0, 2]])
    assert "W = [1, 0, 0; 1/2, 0, 0; 0, 1/2, 1]" in worked.remarks[0]


def test_without_gates_and_state_the_steps_are_fewer():
    short = {name: PROBLEM[name] for name in ("Q", "K", "V")}
    names = [step.name for step in solve_delta_rule(short).steps]
    assert names[:5] == ["p_1", "r_1", "w_1", "S_1", "y_1"]


def test_linear_attention_without_the_delta_rule_is_recognised():
    worked = solve_delta_rule(PROBLEM)
    answers = {"p_3": [[1, 0]], "r_3": [[6, 2]], "S_3": [[7, 2], [0, 2]], "y_3": [[7, 4]]}
    verdicts = work.check_answers(worked, answers)
    found = first_wrong(verdicts)
    assert found is not None
    assert found.name == "r_3"
    assert "without the delta rule" in str(found.diagnosis)
    assert first_wrong(work.check_answers(worked, {"r_3": [[5, 2]], "y_3": [[6, 4]]})) is None


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"K": [[1, 0]]}, "K: needs a row per token in Q, K and V, and the width of Q"),
        ({"beta": [1, 2]}, "beta: needs one number for each of 3 tokens, got 2"),
        ({"S": [[1, 2]]}, "S: needs 2×2, got 1×2"),
        ({"V": None}, "given: needs Q and K and V, got no V"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(values, message):
    with pytest.raises(WorkError, match=message):
        solve_delta_rule(PROBLEM | values)
