"""Costs by hand: the counts of the library's own calculator, and which term wins."""

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.costs.formulas import Formula, generation_cost
from regard.errors import WorkError
from regard.work.exact import parse_matrix
from regard.work.families.cost import COUNT_FORMULAS, size_symbols, solve_cost
from regard.work.marking.findings import first_wrong
from regard.work.rules import get_rule

size = st.integers(1, 600)


def test_the_published_counts():
    worked = work.solve(work.read_problem("cost-layers"))
    want = {"att": 805306368, "RNN": 268435456, "GRU": 805306368, "LSTM": 1073741824}
    assert {name: int(worked[name][0]) for name in want} == want


@pytest.mark.parametrize(("size_", "share"), [(30, 0.014), (512, 0.20), (2048, 0.50)])
def test_the_pairs_are_a_small_share_of_a_decoder(size_, share):
    worked = solve_cost({"M": size_, "N": size_, "k": 512})
    assert float(worked["q"][0]) == pytest.approx(share, abs=5e-4)


def test_the_cost_of_a_second_language_matches_the_cost_module():
    worked = work.solve(work.read_problem("cost-translation"))
    assert float(worked["u"][0]) == pytest.approx(4 / 7, abs=2e-3)
    model = rg.models.Translator(rg.models.translator_base(vocab=1))
    found = rg.cost(model, source=30, target=30)
    assert found["cross-attention"].multiply_adds == 6 * sum(
        int(worked[name][0]) for name in ("CQ", "CK", "CS")
    )
    ours = int(worked["dL"][0])
    readout = 30 * 512  # of one word
    target = sum(part.multiply_adds for part in found.parts if part.side == "target")
    assert target == ours + readout


@settings(max_examples=20, deadline=None)
@given(size, size)
def test_layer_costs_match_the_cost_module(n, d):
    worked = solve_cost({"n": n, "d": d})
    names = {"att": "attention", "RNN": "rnn", "GRU": "gru", "LSTM": "lstm", "FF": "feed_forward"}
    for name, kind in names.items():
        assert int(worked[name][0]) == rg.costs.layer_cost(kind, n=n, d=d)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 80), size)
def test_generation_costs_match_the_cost_module(n, k):
    worked = solve_cost({"M": 3, "N": n, "k": k})
    assert int(worked["wc"][0]) == generation_cost(n, k)
    assert int(worked["wa"][0]) == generation_cost(n, k, cached=False)


@pytest.mark.parametrize("text", COUNT_FORMULAS)
def test_a_formula_is_read_as_it_is_computed(text):
    letters = size_symbols(text)
    sizes = {letter: n for n, letter in enumerate(letters, 2)}
    rule = get_rule(f"count {text}")
    want = Formula(text).value(**sizes)
    assert int(rule.run(*(parse_matrix(sizes[one]) for one in letters))[0]) == want
    assert rule.text.format(*letters) == text


def test_sizes_may_be_symbols_and_then_the_formulas_come_out():
    values = {"family": "cost", "symbols": ["m", "n", "w"], "given": {"M": "m", "N": "n", "k": "w"}}
    worked = work.solve(values)
    m, n, w = (sympy.Symbol(one, real=True) for one in "mnw")
    assert sympy.expand(worked["e"][0] - (12 * m * w**2 + 2 * m**2 * w)) == 0
    assert sympy.expand(worked["p"][0] - (2 * n**2 * w + 2 * m * n * w)) == 0
    assert worked.remarks == ()


def test_the_missing_factor_and_the_missing_pairs_are_recognised():
    worked = solve_cost({"M": 30, "N": 20, "k": 16})
    for name, values, says in (
        ("ES", 30 * 30 * 16, "the factors in front were left out"),
        ("e", 4 * 30 * 256 + 8 * 30 * 256, "term 2 of the sum was left out"),
        ("EP", 8 * 30 * 256, "multiply and add were counted as two"),
    ):
        found = first_wrong(work.check_answers(worked, {name: values}))
        assert found is not None
        assert found.diagnosis == says


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": 3}, "given: needs n and d; or M, N and k"),
        ({"n": 3, "d": 0}, "d: needs one whole number from 1 on"),
        ({"n": "1/2", "d": 1}, "n: needs one whole number from 1 on"),
    ],
)
def test_what_cannot_be_counted_is_reported(values, message):
    with pytest.raises(WorkError, match=message):
        solve_cost(values)
