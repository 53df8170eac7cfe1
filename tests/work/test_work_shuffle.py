"""Permuted tokens: equivariant, invariant once pooled, neither under a mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard import work
from regard.errors import WorkError
from regard.work.families.positions import solve_shuffle

small = st.fractions(-2, 2, max_denominator=2).map(str)
tokens = st.lists(st.lists(small, min_size=2, max_size=2), min_size=3, max_size=3)


def test_without_a_mask_order_only_moves_the_outputs():
    worked = work.solve(work.read_problem("shuffle"))
    assert not any(worked["D"])
    assert not any(worked["d"])
    assert "equivariant" in worked.remarks[0]
    assert "alone is not invariant" in worked.remarks[-1]


def test_a_causal_mask_sees_the_order():
    worked = work.solve(work.read_problem("shuffle") | {"mask": "causal"})
    assert any(worked["D"])
    assert any(worked["d"])
    assert "not permuted" in worked.remarks[0]


@settings(max_examples=6, deadline=None)
@given(tokens, st.permutations([1, 2, 3]), st.sampled_from([None, "causal"]))
def test_both_orders_are_those_of_the_ops(x, order, mask):
    worked = solve_shuffle({"X": x, "order": order}, mask=mask)
    for name in ("X", "X_P"):
        q = torch.tensor(worked[name].evalf(20).tolist(), dtype=torch.float64)
        want, _ = rg.attend(q, q, q, mask=rg.Causal() if mask else None, backend="reference")
        got = worked["H_1" if name == "X" else "H_2"].evalf(20).tolist()
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), want, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("users_view")
def test_invalid_permutations_raise():
    with pytest.raises(WorkError, match="order: needs each of 1 to 2 once, got"):
        solve_shuffle({"X": [[1], [2]], "order": [1, 1]})
    with pytest.raises(WorkError, match="given: needs X and order, got no order"):
        solve_shuffle({"X": [[1], [2]]})
