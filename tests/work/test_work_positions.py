"""Positions by hand: published tables, rotations, and the ops in float64."""

import pytest
import sympy
import torch
from by_hand import floats
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import ShapeError, WorkError
from regard.work.families.positions import solve_positions, solve_rotary
from regard.work.marking.findings import first_wrong
from regard.work.rules import get_rule


def assert_near(value, want, within=1e-9):
    torch.testing.assert_close(floats(value), want, rtol=0, atol=within)


# ---- worked numbers


def test_the_table_of_four_positions_and_four_features():
    worked = work.solve(work.read_problem("positions"))
    want = [
        [0, 1, 0, 1],
        [0.841471, 0.540302, 0.010000, 0.999950],
        [0.909297, -0.416147, 0.019999, 0.999800],
        [0.141120, -0.989992, 0.029996, 0.999550],
    ]
    assert_near(worked["PE"], torch.tensor(want, dtype=torch.float64), 5e-7)


def test_shifts_and_dot_products_are_exact():
    worked = work.solve(work.read_problem("positions"))
    assert worked["T_k"] == worked["PE_k"]
    assert (
        worked["L"][0, 1] == worked["L"][1, 2] == sympy.cos(1) + sympy.cos(sympy.Rational(1, 100))
    )
    assert worked["L"][0, 0] == 2  # half of the features: the norm never changes
    assert len(worked.remarks) == 2


# ---- properties


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 3), st.sampled_from([2, 4]), st.integers(0, 3), st.sampled_from([100, 10000]))
def test_codes_and_turns_are_those_of_the_ops(count, dim, k, base):
    worked = solve_positions({"p": count, "d": dim, "k": k, "base": base})
    places = torch.arange(count)
    assert_near(worked["PE"], rg.ops.sinusoidal(places, dim, base))
    assert_near(worked["PE_k"], rg.ops.sinusoidal(places + k, dim, base))
    assert_near(worked["R_k"], rg.ops.sinusoidal_shift(k, dim, base))


small = st.integers(-2, 2)


@settings(max_examples=4, deadline=None)
@given(st.lists(st.lists(small, min_size=4, max_size=4), min_size=4, max_size=4),
       st.sampled_from([None, [[3, 1]]]))  # fmt: skip
def test_rotary_is_that_of_the_ops(numbers, places):
    worked = solve_rotary({"Q": numbers[:2], "K": numbers[2:], "V": [[1], [2]], "p": places})
    at = torch.tensor([0, 1] if places is None else places[0])
    q, k = (rg.ops.apply_rope(floats(worked[one]), at) for one in "QK")
    assert_near(worked["Q_p"], q)
    want, _ = rg.attend(q, k, floats(worked["V"]), backend="reference")
    assert_near(worked["H"], want)
    assert "only distances matter" in worked.remarks[-1]


# ---- answers


@pytest.mark.parametrize(
    ("name", "slip"),
    [
        ("ω", "i was taken as the index of the feature, not of the pair"),
        ("PE", "all sines come first, then all cosines"),
        ("PE", "sine and cosine were swapped"),
        ("R_k", "it rotates the other way: the sign of the sines"),
    ],
)
def test_mistakes_in_positions_are_diagnosed(name, slip):
    worked = work.solve(work.read_problem("positions"))
    step = next(one for one in worked.steps if one.name == name)
    found = get_rule(step.rule).mistakes[slip](*(worked[one] for one in step.inputs))
    values = [[f"{float(x):.9f}" for x in row] for row in found.evalf(20).tolist()]
    wrong = first_wrong(work.check_answers(worked, {name: values}))
    assert wrong is not None
    assert wrong.diagnosis == slip


def test_pairs_taken_from_two_halves_are_recognised():
    worked = solve_rotary({"Q": [[1, 2, 3, 4]], "K": [[1, 0, 0, 0]], "p": [[2]]})
    halves = rg.ops.apply_rope(
        torch.tensor([[1.0, 2, 3, 4]]).double(), torch.tensor([2]), rotate_half=True
    )
    values = [[f"{x:.6f}" for x in row] for row in halves.tolist()]
    wrong = first_wrong(work.check_answers(worked, {"Q_p": values}))
    assert wrong is not None
    assert wrong.diagnosis == "pairs were taken from the two halves"


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_positions_that_cannot_be_are_reported():
    with pytest.raises(ShapeError, match="d: needs an even number, one sine and one cosine"):
        solve_positions({"p": 2, "d": 3})
    with pytest.raises(WorkError, match="given: needs p and d, got no d"):
        solve_positions({"p": 2})
    with pytest.raises(WorkError, match="p: needs a count from 1 to 64"):
        solve_positions({"p": 1000, "d": 2})
    with pytest.raises(WorkError, match="k: needs one number up to 512, got inf"):
        solve_positions({"p": 2, "d": 2, "k": "inf"})
    with pytest.raises(WorkError, match="p: needs one row of positions"):
        solve_positions({"p": [["inf", 1]], "d": 2})
    with pytest.raises(WorkError, match="given: needs Q and K, got no K"):
        solve_rotary({"Q": [[1, 0]]})
    with pytest.raises(ShapeError, match="needs one angle per pair of features"):
        solve_rotary({"Q": [[1, 0]], "K": [[1, 0], [0, 1]]})
