"""Constructed attention: published shares, torch's convolution, and its obstacles."""

import math

import pytest
import sympy
import torch
from by_hand import floats
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.exact import evaluate_digits
from regard.work.families.constructions import solve_convolution, solve_identity, solve_permutation
from regard.work.marking.findings import first_wrong


@pytest.mark.parametrize(
    ("n", "beta", "want"), [(4, "1/2", 0.3547), (4, 1, 0.4754), (2, "1/sqrt(2)", 0.6698)]
)
def test_weights_of_orthonormal_tokens_match_the_published_ones(n, beta, want):
    worked = solve_identity({"n": n}, scale=beta)
    assert float(evaluate_digits(worked["c"][0], 20)) == pytest.approx(want, abs=5e-5)
    assert floats(worked["A"]).diagonal().tolist() == pytest.approx([want] * n, abs=5e-5)


def test_the_scale_that_is_needed_is_enough_and_no_more():
    needed = solve_identity({"n": 4})["b"][0]
    assert float(needed) == pytest.approx(math.log(99 * 3))
    reached = solve_identity({"n": 4}, scale=needed)
    assert sympy.simplify(reached["A"][0, 0]) == sympy.Rational(99, 100)


@settings(max_examples=4, deadline=None)
@given(st.integers(2, 4), st.integers(1, 9))
def test_the_weights_of_unit_tokens_are_those_of_torch(n, beta):
    worked = solve_identity({"n": n}, scale=beta)
    want = (beta * torch.eye(n, dtype=torch.float64)).softmax(1)
    torch.testing.assert_close(floats(worked["H"]), want, rtol=1e-9, atol=1e-12)


def test_values_are_undone_by_the_output_weights():
    worked = solve_identity({"n": 2, "W_V": [[1, 1], [0, 2]]}, scale=60)
    assert worked["W_V"] * worked["W_O"] == sympy.eye(2)
    assert float(evaluate_digits(worked["r"][0], 20)) < 1e-20


def test_a_longer_token_stands_in_the_way_of_an_identity():
    worked = solve_identity({"X": [[1, 0], [3, "1/2"]]})
    assert worked["b"][0] == sympy.oo
    assert "No β makes this an identity" in worked.remarks[1]


def test_a_permutation_is_reached_in_the_limit_and_a_gather_is_none():
    worked = solve_permutation({"order": [3, 1, 2], "X": [[1], [2], [3]]}, scale="inf")
    assert list(worked["H"]) == [3, 1, 2]
    assert worked["r"][0] == 0
    assert worked.remarks[0] == "Each token is selected exactly once: a permutation."
    gather = solve_permutation({"order": [1, 1, 1]})
    assert list(gather["T"]) == [3, 0, 0]
    assert "n!/nⁿ = 0.222" in gather.remarks[0]


def test_a_width_of_three_is_exact_inside_and_renormalised_at_the_ends():
    worked = work.solve(work.read_problem("convolution"))
    third = sympy.Rational(1, 3)
    assert list(worked["A"].row(0)) == [2 * third, third, 0, 0, 0]
    assert [i for i in range(5) if worked["R"][i]] == [0, 4]
    flat = solve_convolution({"kernel": [1, 1, 1], "X": [[1]] * 5})
    assert [sum(flat["C"].row(i)) / 3 for i in range(5)] == [2 * third, 1, 1, 1, 2 * third]


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(lambda k: sum(map(bool, k)) > 1),
       st.lists(st.integers(-3, 3), min_size=3, max_size=5))  # fmt: skip
def test_one_head_per_tap_matches_torchs_convolution(kernel, x):
    worked = solve_convolution({"kernel": kernel, "X": [[one] for one in x]}, method="head_per_tap")
    taps = torch.tensor(kernel, dtype=torch.float64)[None, None]
    want = torch.nn.functional.conv1d(
        torch.tensor(x, dtype=torch.float64)[None, None], taps, padding=1
    )
    assert floats(worked["O"])[:, 0].tolist() == want[0, 0].tolist()
    assert worked["r"][0] == 0


def test_that_softmax_of_the_unit_matrix_is_not_the_unit_matrix_is_a_known_slip():
    worked = work.solve(work.read_problem("identity"))
    found = first_wrong(work.check_answers(worked, {"c": 1}))
    assert found is not None
    assert "softmax of the identity" in found.diagnosis


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"family": "identity", "given": {"W_V": 1}}, "given: needs X, or n from 2 to 12"),
        ({"family": "identity", "target_weight": 1, "given": {"n": 2}},
         "target_weight: needs a weight between"),
        ({"family": "identity", "given": {"n": 2, "W_V": [[0, 0], [0, 0]]}}, "W_V: needs to be sq"),
        ({"family": "permutation", "given": {"order": [1, 3]}}, "order: needs 2 to 12 numbers"),
        ({"family": "convolution", "given": {"kernel": [1, 0, -1], "X": [[1]]}},
         'got -1; try method = "head_per_tap"'),
        ({"family": "convolution", "given": {"kernel": [1, 1], "X": [[1]]}}, "an odd number"),
        ({"family": "convolution", "given": {"X": [[1]]}}, "got no kernel"),
        ({"family": "convolution", "method": "two", "given": {"kernel": [1], "X": [[1]]}},
         "method: needs one_h"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_reported(problem, message):
    with pytest.raises(WorkError, match=message):
        work.solve(problem)
