"""Norms: the formula, what they leave unchanged, and NaN that stays visible."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.ops import layer_norm, rms_norm

sizes = st.tuples(st.integers(1, 3), st.integers(2, 6))


@given(sizes, st.floats(1e-8, 1e-2))
def test_each_norm_is_its_formula(shape, eps):
    x, (gain, bias) = torch.randn(shape).double(), torch.randn(2, shape[1]).double()
    mean = x.sum(-1, keepdim=True) / shape[1]
    var = ((x - mean) ** 2).sum(-1, keepdim=True) / shape[1]
    assert_close(layer_norm(x, gain, bias, eps), gain * (x - mean) / (var + eps).sqrt() + bias)
    square = (x**2).sum(-1, keepdim=True) / shape[1]
    assert_close(rms_norm(x, gain, eps), gain * x / (square + eps).sqrt())


@given(sizes)
def test_before_gain_and_bias_a_token_has_zero_mean_and_unit_variance(shape):
    y = layer_norm(torch.randn(shape).double(), eps=0.0)
    assert_close(y.mean(-1), torch.zeros(shape[0]).double())
    assert_close(y.var(-1, correction=0), torch.ones(shape[0]).double())


@given(sizes, st.floats(0.1, 100), st.floats(-5, 5))
def test_scale_is_forgotten_by_both_and_shift_by_layer_norm(shape, scale, shift):
    x = torch.randn(shape).double()
    assert_close(layer_norm(scale * x + shift, eps=0.0), layer_norm(x, eps=0.0))
    assert_close(rms_norm(scale * x, eps=0.0), rms_norm(x, eps=0.0))


def test_a_constant_token_gives_the_bias_and_not_nan():
    bias = torch.tensor([1.0, 2.0])
    assert torch.equal(layer_norm(torch.full((2,), 3.0), None, bias), bias)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_a_token_is_normalised_by_itself_so_nan_stays_in_its_token(norm):
    x = torch.randn(3, 4)
    before = norm(x)
    x[1, 2] = torch.nan
    after = norm(x)
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2]], before[[0, 2]])


def test_gradients_are_right():
    x, gain, bias = (torch.randn(s).double().requires_grad_() for s in ((2, 4), (4,), (4,)))
    torch.autograd.gradcheck(layer_norm, (x, gain, bias))
    torch.autograd.gradcheck(rms_norm, (x, gain))


def test_the_jacobian_of_layer_norm_loses_two_directions():
    x = torch.randn(16, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer_norm(x, eps=0.0), x)
    assert torch.linalg.matrix_rank(jacobian, atol=1e-8) == 14  # the mean and the length
