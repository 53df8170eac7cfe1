"""Softargmax: its limits, its gradient, straight-through and Gumbel variants."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.ops import gumbel_softmax, softargmax, straight_through

rows = st.lists(st.integers(-3, 3), min_size=1, max_size=6).map(
    lambda x: torch.tensor(x, dtype=torch.float64)
)
sharpness = st.floats(0.01, 50)


@given(rows)
def test_at_zero_all_share_and_at_infinity_the_best_do(x):
    assert_close(softargmax(x, 0), torch.full_like(x, 1 / len(x)), atol=0, rtol=1e-15)
    best = (x == x.max()).double()
    assert_close(softargmax(x, torch.inf), best / best.sum(), atol=0, rtol=1e-15)


@given(rows)
def test_the_limits_are_where_small_and_large_beta_go(x):
    assert_close(softargmax(x, 1e-9), softargmax(x, 0), atol=1e-8, rtol=0)
    assert_close(softargmax(x, 1e3), softargmax(x, torch.inf), atol=1e-8, rtol=0)


@given(rows, sharpness)
def test_weights_sum_to_one_and_keep_the_order_of_scores(x, beta):
    w = softargmax(x, beta)
    assert_close(w.sum(), torch.tensor(1.0, dtype=torch.float64))
    order = x.argsort()
    assert (w[order].diff() >= 0).all()


@given(rows, sharpness)
def test_what_the_best_key_loses_is_bounded_by_its_lead(x, beta):
    top = x.topk(min(2, len(x))).values
    lead = float(top[0] - top[-1]) if len(x) > 1 else math.inf
    lost = 1 - float(softargmax(x, beta).max())
    assert lost <= (len(x) - 1) * math.exp(-beta * lead) + 1e-12


def test_entropy_falls_as_beta_grows():
    x = torch.randn(6, dtype=torch.float64)
    entropy = [float(torch.special.entr(softargmax(x, b)).sum()) for b in (0, 0.5, 1, 3, 10, 99)]
    assert entropy == sorted(entropy, reverse=True)
    assert_close(entropy[0], math.log(6))


@given(rows, st.sampled_from([0.0, 0.5, 1.0, 7.0, torch.inf]))
def test_a_masked_score_has_weight_zero_and_a_masked_row_gives_zeros(x, beta):
    x = torch.stack([x, x])
    x[0, 0] = -torch.inf
    x[1] = -torch.inf
    w = softargmax(x, beta)
    assert w[0, 0] == 0
    assert (w[1] == 0).all()
    assert_close(w[0].sum(), torch.tensor(float(x.shape[1] > 1), dtype=torch.float64))


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_gradient_is_right_also_beside_a_row_that_sees_nothing(beta):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: softargmax(x, beta), x)
    hidden = torch.zeros(3, 4, dtype=torch.bool)
    hidden[1], hidden[2, :2] = True, True
    masked = lambda x: softargmax(x.masked_fill(hidden, -torch.inf), beta)  # noqa: E731
    torch.autograd.gradcheck(masked, x)
    (grad,) = torch.autograd.grad(masked(x).square().sum(), x)
    assert grad.isfinite().all()
    assert (grad[1] == 0).all()


@given(rows, st.sampled_from([0.5, 1.0, 4.0]))
def test_straight_through_is_hard_forward_and_soft_backward(x, beta):
    x = x.requires_grad_()
    w, values = straight_through(x, beta), torch.arange(len(x), dtype=torch.float64)
    assert_close(w.detach(), softargmax(x.detach(), torch.inf))
    (hard,) = torch.autograd.grad(w @ values, x)
    (soft,) = torch.autograd.grad(softargmax(x, beta) @ values, x)
    assert_close(hard, soft)


def test_plain_argmax_has_no_gradient_and_straight_through_has():
    x = torch.tensor([0.2, 0.1], requires_grad=True)
    assert not softargmax(x, torch.inf).requires_grad
    assert straight_through(x).requires_grad


def test_gumbel_samples_each_key_with_its_weight_as_probability():
    x, start = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), torch.Generator().manual_seed(1)
    drawn = gumbel_softmax(x.expand(40_000, 3), hard=True, generator=start)
    assert ((drawn == 0) | ((drawn - 1).abs() < 1e-12)).all()
    share, w = drawn.mean(0), softargmax(x)
    assert ((share - w).abs() < 4 * (w * (1 - w) / 40_000).sqrt()).all()


def test_a_gumbel_draw_can_be_repeated_and_differentiated():
    def draw(x: torch.Tensor) -> torch.Tensor:
        return gumbel_softmax(x, beta=2.0, generator=torch.Generator().manual_seed(0))

    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(draw(x), draw(x))
    torch.autograd.gradcheck(draw, x)


@pytest.mark.parametrize("beta", [0.0, 0.7, torch.inf])
def test_nan_is_shown_in_its_own_row_and_no_other(beta):
    w = softargmax(torch.tensor([[1.0, torch.nan], [0.0, 0.0]]), beta)
    assert w[0].isnan().all()
    assert_close(w[1], torch.tensor([0.5, 0.5]))


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("beta", [-1.0, math.nan])
def test_a_negative_sharpness_is_refused(beta):
    with pytest.raises(ShapeError) as error:
        softargmax(torch.zeros(2), beta)
    assert str(error.value) == f"beta: needs 0 or more, got {beta}; try negating the scores"


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("beta", [0.0, 1.0, torch.inf])
def test_no_keys_give_no_weights(beta):
    assert softargmax(torch.zeros(2, 0), beta).shape == (2, 0)
