"""Terms: one definition of a score, whole or in tiles."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.ops import Causal, Local, Terms, Toeplitz
from regard.ops.terms import make_terms


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_a_score_is_capped_then_biased_then_masked():
    q, k, bias = numbers(1, 3, 2), numbers(1, 3, 2), numbers(1, 3, 3)
    terms = make_terms(q, k, mask=Causal(), bias=bias, scale=0.7, softcap=2.0)
    want = 2 * torch.tanh(0.7 * q @ k.mT / 2) + bias
    want = want.masked_fill(~torch.ones(3, 3, dtype=torch.bool).tril(), -torch.inf)
    assert_close(terms.score_tile(q, k), want)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), st.data())
def test_a_tile_is_a_slice_of_the_map(queries, keys, offset, data):
    q, k = numbers(2, queries, 3), numbers(2, keys, 3)
    mask = (Causal() | Local(1)) & Local(3)
    terms = make_terms(q, k, mask=mask, bias=Toeplitz(numbers(2, 3)), offset=offset)
    first, start = data.draw(st.integers(0, queries - 1)), data.draw(st.integers(0, keys - 1))
    rows, cols = range(first, queries), range(start, keys)
    assert_close(terms.score_tile(q, k, rows, cols), terms.score_tile(q, k)[:, first:, start:])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 8))
def test_the_span_of_some_rows_holds_all_they_can_see(queries, keys, offset):
    q, k = numbers(queries, 2), numbers(keys, 2)
    terms = make_terms(q, k, mask=Causal() & Local(2), offset=offset)
    scores = terms.score_tile(q, k)
    for row in range(queries):
        span = terms.key_span(range(row, row + 1), keys)
        assert [j for j in range(keys) if scores[row, j] > -torch.inf] == list(span)


@given(st.integers(1, 3), st.integers(1, 3))
def test_grouped_heads_are_keys_repeated(groups, each):
    q, k = numbers(2, groups * each, 3, 4), numbers(2, groups, 5, 4)
    whole = make_terms(q, k).score_tile(q, k)
    assert_close(whole, 0.5 * q @ k.repeat_interleave(each, 1).mT)


def test_half_precision_is_scored_in_float32():
    q = torch.randn(3, 4, dtype=torch.bfloat16)
    assert make_terms(q, q).score_tile(q, q).dtype == torch.float32


def test_sinks_take_their_share_of_the_sum():
    terms = Terms(scale=1.0, sinks=torch.tensor([0.0, 1.0]))
    lse = terms.with_sinks(torch.zeros(2, 1))
    assert_close(lse.exp(), torch.tensor([[2.0], [1.0 + torch.e]]))


def test_terms_can_be_left_out():
    terms = Terms(scale=1.0, mask=Causal(), softcap=3.0)
    assert terms.without("mask", "softcap") == Terms(scale=1.0)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_gradients_reach_queries_keys_and_bias(softcap):
    q, k, table = (x.requires_grad_() for x in (numbers(1, 2, 3), numbers(1, 4, 3), numbers(1, 3)))

    def scores(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return make_terms(q, k, bias=Toeplitz(table), softcap=softcap).score_tile(q, k)

    torch.autograd.gradcheck(scores, (q, k, table))


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("q", "k", "terms", "message"),
    [
        ((3, 4), (3, 5), {}, "k: needs head_dim=4 as q has, got 5; try score=bilinear, which lets"),
        (
            (2, 3, 4),
            (3, 4),
            {},
            "k: needs as many axes as q, 2 or more, got (3, 4) for q (2, 3, 4)",
        ),
        ((3, 2, 5, 4), (2, 2, 5, 4), {}, "k: needs the leading axes (3,) of q, got (2,)"),
        ((3, 5, 4), (2, 5, 4), {}, "q: needs a multiple of the 2 heads of k, got 3; try equal"),
        ((3, 0), (3, 0), {}, "q: needs head_dim of 1 or more, got 0"),
        ((3, 4), (3, 4), {"scale": torch.inf}, "scale: needs a finite number, got inf; try soft"),
        ((3, 4), (3, 4), {"softcap": 0.0}, "softcap: needs more than 0, got 0.0; try None"),
        ((3, 4), (3, 4), {"offset": -1}, "offset: needs 0 or more, got -1"),
        (
            (2, 3, 4),
            (2, 3, 4),
            {"sinks": torch.zeros(3)},
            "sinks: needs one for each of 2 heads, got (3,)",
        ),
        (
            (3, 4),
            (3, 4),
            {"scale": 1.0, "score": torch.matmul},
            "scale: needs None beside score, which replaces scale · q · k, got 1.0",
        ),
    ],
)
def test_terms_that_do_not_fit_raise(q, k, terms, message):
    with pytest.raises(ShapeError) as error:
        make_terms(torch.zeros(q), torch.zeros(k), **terms)
    assert str(error.value).startswith(message)
