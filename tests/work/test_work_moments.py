"""Moments of a dot product: formulas, simulation, and known mistakes."""

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.families.moments import solve_moments
from regard.work.marking.findings import first_wrong

FX12 = work.solve(work.read_problem("dot-product-moments"))


def test_the_published_moments():
    assert FX12["E"][0] == sympy.Rational("13.283")
    assert FX12["v"][0] == sympy.Rational("90.566")
    centred = solve_moments({"mu": 0, "sigma": "1/2", "d": 64}, samples=0)
    assert centred["v"][0] == 4
    assert centred["u"][0] == sympy.Rational(1, 16)


def test_moments_small_enough_to_check_by_hand():
    two = solve_moments({"mu": [1, 2], "sigma": 1}, samples=0)
    assert (two["m"][0], two["E"][0], two["v"][0]) == (5, 5, 12)
    assert two["w"][0] == 5 / sympy.sqrt(2)
    itself = solve_moments({"mu": [1, 2], "sigma": 1}, samples=0, q_is_k=True)
    assert (itself["E"][0], itself["v"][0]) == (7, 24)
    alike = solve_moments({"mu": 2, "sigma": 1, "d": 3}, samples=0)
    assert alike["m"][0] == 12


def test_the_simulation_agrees_within_its_error_bars():
    mean, error, variance, spread = map(float, FX12["sim"])
    assert abs(mean - 13.283) < 4 * error
    assert abs(variance - 90.566) < 4 * spread
    assert error < 0.1 < spread < 2


def test_a_simulation_is_the_same_from_the_same_seed():
    again = solve_moments({"mm": "13.283", "sigma": 1, "d": 64})
    other = solve_moments({"mm": "13.283", "sigma": 1, "d": 64}, seed=1)
    assert again["sim"] == FX12["sim"] != other["sim"]
    assert FX12.recompute() == FX12.values()


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=1, max_size=4), st.sampled_from([0.5, 1, 2]),
       st.booleans())  # fmt: skip
def test_the_formulas_are_those_of_draws(mu, sigma, same):
    worked = solve_moments({"mu": mu, "sigma": sigma}, samples=0, q_is_k=same)
    chance = np.random.default_rng(3)
    q, k = (chance.normal(mu, sigma, (200_000, len(mu))) for _ in range(2))
    s = (q * (q if same else k)).sum(1)
    error = (s.var() / len(s)) ** 0.5
    assert abs(s.mean() - float(worked["E"][0])) < 5 * error
    assert s.var() == pytest.approx(float(worked["v"][0]), rel=0.05)


def test_mean_and_variance_of_symbols_are_the_formulas():
    given_ = {"mm": "m", "sigma": "s", "d": "d"}
    worked = work.solve({"family": "moments", "symbols": ["m", "s", "d"], "given": given_})
    m, s, d = (sympy.Symbol(one, real=True) for one in "msd")
    assert sympy.expand(worked["v"][0] - (2 * s**2 * m + d * s**4)) == 0
    assert "sim" not in worked.values()


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("v_1", str(2 * 64 * 13.283), "an extra factor d"),
        ("v_2", "1", "the d was left out"),
        ("s", "90.566", "the root was left out"),
    ],
)
def test_known_mistakes_are_recognised(name, values, says):
    found = first_wrong(work.check_answers(FX12, {name: values}))
    assert found is not None
    assert says in found.diagnosis


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("values", "choices", "message"),
    [
        ({"mu": 1}, {}, "given: needs sigma, and mu or mm with d, got mu"),
        ({"mm": 1, "sigma": 1}, {}, "mm: needs 0 or more, and d with it"),
        ({"mu": [1, 2], "sigma": 1, "d": 3}, {}, "d: needs to be the count of mu, 2"),
        ({"mu": 1, "sigma": 1, "d": 0}, {}, "d: needs a whole number of 1 or more, got 0"),
        ({"mu": 1, "sigma": 0, "d": 2}, {}, "sigma: needs a number above 0, got 0"),
        ({"mu": 1, "sigma": 1}, {"seed": -1}, "seed: needs a whole number from 0 on, got -1"),
        (
            {"mu": 1, "sigma": 1, "d": 2},
            {"samples": 10**9},
            "samples: needs 2 to 10000000 for d = 2",
        ),
    ],
)
def test_what_does_not_fit_is_reported(values, choices, message):
    with pytest.raises(WorkError, match=message):
        solve_moments(values, **choices)
