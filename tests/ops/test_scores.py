"""Scores: four kinds, each against a loop over its equation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.ops import additive, attend, bilinear, dot, scaled_dot, score_moments

few = st.integers(1, 4)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@given(few, few, few, few, few)
def test_each_score_is_its_equation(batch, queries, keys, head_dim, hidden):
    q, k, wide = (
        numbers(batch, queries, head_dim),
        numbers(batch, keys, head_dim),
        numbers(batch, keys, 3),
    )
    w, w_q, w_k, v = (
        numbers(head_dim, 3),
        numbers(head_dim, hidden),
        numbers(3, hidden),
        numbers(hidden),
    )
    scores = dot(q, k), scaled_dot(q, k), bilinear(q, wide, w), additive(q, wide, w_q, w_k, v)
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                one, other, third = q[b, i], k[b, j], wide[b, j]
                want = (
                    (one * other).sum(),
                    (one * other).sum() / head_dim**0.5,
                    sum(one[x] * w[x, y] * third[y] for x in range(head_dim) for y in range(3)),
                    (v * torch.tanh(w_q.mT @ one + w_k.mT @ third)).sum(),
                )
                for got, answer in zip(scores, want, strict=True):
                    assert_close(got[b, i, j], answer)


@given(few, few)
def test_bilinear_with_the_identity_is_the_dot_product(queries, head_dim):
    q, k = numbers(queries, head_dim), numbers(3, head_dim)
    assert_close(bilinear(q, k, torch.eye(head_dim).double()), dot(q, k))


@pytest.mark.parametrize(
    ("score", "shapes"),
    [
        (dot, [(2, 3), (4, 3)]),
        (scaled_dot, [(2, 3), (4, 3)]),
        (bilinear, [(2, 3), (4, 2), (3, 2)]),
        (additive, [(2, 3), (4, 2), (3, 5), (2, 5), (5,)]),
    ],
)
def test_gradients_are_right(score, shapes):
    torch.autograd.gradcheck(score, [numbers(*shape).requires_grad_() for shape in shapes])


def test_any_score_can_take_the_place_of_the_dot_product():
    q, k, v = numbers(2, 3), numbers(4, 3), numbers(4, 5)
    w = numbers(3, 3)
    out, lse = attend(q, k, v, score=lambda q, k: bilinear(q, k, w))
    scores = q @ w @ k.mT
    assert_close(out, scores.softmax(-1) @ v)
    assert_close(lse, scores.logsumexp(-1))
    assert_close(attend(q, k, v, score=scaled_dot), attend(q, k, v))


def test_random_scores_have_the_moments_of_the_formula():
    mean, sigma = torch.linspace(-1, 1, 16).double(), 0.7
    q, k = mean + sigma * numbers(2, 200_000, 1, 16)
    drawn, (expected, variance) = dot(q, k).flatten(), score_moments(mean, sigma)
    assert abs(drawn.mean() - expected) < 4 * (variance / drawn.numel()) ** 0.5
    assert abs(drawn.var() / variance - 1) < 0.02


def test_nan_in_a_query_is_seen_in_its_own_row_only():
    q, k = numbers(2, 3), numbers(4, 3)
    q[0, 1] = torch.nan
    for scores in (dot(q, k), scaled_dot(q, k), bilinear(q, k, numbers(3, 3))):
        assert scores[0].isnan().all()
        assert scores[1].isfinite().all()
