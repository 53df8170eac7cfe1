"""RNN with attention: torch's numbers, its context and its size."""

import pytest
import torch
from by_hand import floats
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.exact import evaluate_digits, parse_matrix
from regard.work.families.recurrent.cells import solve_recurrent_attention
from regard.work.marking.findings import first_wrong

small = st.integers(-30, 30).map(lambda x: f"{x / 20}")


def in_torch(values, score, query):
    p = {name: floats(parse_matrix(value)) for name, value in values.items()}
    states, h = [], p["h"]
    for t in range(p["x"].shape[1]):
        new = torch.tanh(p["W"] @ p["x"][:, [t]] + p["U"] @ h)
        q, a = new if query == "candidate" else h, torch.zeros_like(h)
        if states:
            keys = torch.cat(states, 1)
            scores = (keys.T @ q) / (len(h) ** 0.5 if score == "scaled" else 1)
            if score == "additive":
                scores = torch.tanh(p["W_1"] @ q + p["W_2"] @ keys).T @ p["V_a"].T
            a = keys @ scores.softmax(0)
        h = new + a
        states.append(h)
    return states


@pytest.mark.parametrize("score", ["dot", "scaled", "additive"])
@settings(max_examples=3, deadline=None)
@given(st.data(), st.sampled_from(["candidate", "previous"]))
def test_every_state_matches_torch(score, data, query):
    def cells(rows, columns):
        return [[data.draw(small) for _ in range(columns)] for _ in range(rows)]

    told = {"x": cells(2, 4), "h": cells(2, 1), "W": cells(2, 2), "U": cells(2, 2)}
    told |= {"W_1": cells(3, 2), "W_2": cells(3, 2), "V_a": cells(1, 3)}
    worked = solve_recurrent_attention(told, score=score, query=query)
    for t, want in enumerate(in_torch(told, score, query), 1):
        torch.testing.assert_close(floats(worked[f"h_{t}"]), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", ["dot", "scaled", "additive"])
def test_the_problem_that_comes_along_is_that_of_torch(score):
    values = work.read_problem("recurrent-attention")["given"] | {"h": [["1/2"], [-1]]}
    values |= {"W_1": [[1, 2]], "W_2": [[-1, 1]], "V_a": [[3]]}
    worked = solve_recurrent_attention(values, score=score)
    for t, want in enumerate(in_torch(values, score, "candidate"), 1):
        torch.testing.assert_close(floats(worked[f"h_{t}"]), want, rtol=1e-9, atol=1e-9)


def test_the_first_step_looks_at_nothing_and_each_later_one_at_all_before_it():
    worked = work.solve(work.read_problem("recurrent-attention"))
    assert worked["a_1"] == parse_matrix([[0], [0]])
    assert [worked[f"A_{t}"].rows for t in (2, 3)] == [1, 2]
    assert worked["A_2"] == parse_matrix(1)


def test_a_state_grows_with_time_but_never_past_it():
    worked = solve_recurrent_attention({"x": [[9] * 6], "W": 1, "U": 1})
    sizes = [float(evaluate_digits(worked[f"h_{t}"][0], 20)) for t in range(1, 7)]
    assert sizes == sorted(sizes)
    assert all(size <= t for t, size in enumerate(sizes, 1))
    assert sizes[-1] > 2  # a plain RNN stays below 1


def test_the_state_before_as_query_is_recognised():
    worked = solve_recurrent_attention(work.read_problem("recurrent-attention")["given"])
    other = (worked["H_3"].T * worked["h_2"]).evalf(20).tolist()
    found = first_wrong(
        work.check_answers(worked, {"s_3": [[f"{float(x):.9f}" for x in r] for r in other]})
    )
    assert found is not None
    assert found.diagnosis == "the previous state was taken as the query"


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"score": "cosine"}, "score: needs one of dot, scaled, additive, got 'cosine'"),
        ({"query": "h_t"}, "got 'h_t'; h_t itself depends on a_t"),
        ({"score": "additive"}, "given: needs W_1, W_2, V_a for the score additive"),
    ],
)
def test_a_circle_and_other_slips_are_refused(choices, message):
    with pytest.raises(WorkError, match=message):
        solve_recurrent_attention(work.read_problem("recurrent-attention")["given"], **choices)
