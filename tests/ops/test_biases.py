"""Biases: each against its formula written densely, and against the models that use it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.ops import ALiBi, Bias, Buckets, RelativeKeys, Toeplitz, alibi_slopes, attention_weights
from regard.ops.biases import DenseBias
from regard.ops.grid import Grid

HEADS, FEAT = 2, 4


def tile(bias: Bias, rows: range, keys: range, offset: int = 0, q: torch.Tensor | None = None):
    grid = Grid((HEADS,), rows, keys, offset, torch.device("cpu"))
    q = torch.zeros(HEADS, len(rows), FEAT, dtype=torch.float64) if q is None else q
    return bias.tile(grid, q, 0.5).expand(HEADS, len(rows), len(keys))


def table(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_slopes_are_those_of_the_paper_for_8_heads():
    assert_close(alibi_slopes(8), torch.tensor([1 / 2**n for n in range(1, 9)]))


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 5), st.integers(0, 3))
def test_each_bias_is_its_formula(rows, keys, offset, radius):
    slopes, toeplitz = table(HEADS), table(HEADS, 2 * radius + 1)
    relative, q = table(2 * radius + 1, FEAT), table(HEADS, rows, FEAT)
    dense = {
        kind: torch.empty(HEADS, rows, keys).double() for kind in ("alibi", "toeplitz", "shaw")
    }
    for h in range(HEADS):
        for row in range(rows):
            for j in range(keys):
                i = row + offset
                step = max(-radius, min(radius, j - i)) + radius
                dense["alibi"][h, row, j] = -slopes[h] * abs(i - j)
                dense["toeplitz"][h, row, j] = toeplitz[h, step]
                dense["shaw"][h, row, j] = 0.5 * q[h, row] @ relative[step]
    area = (range(rows), range(keys), offset)
    assert_close(tile(ALiBi(slopes), *area), dense["alibi"])
    assert_close(tile(Toeplitz(toeplitz), *area), dense["toeplitz"])
    assert_close(tile(RelativeKeys(relative), *area, q=q), dense["shaw"])
    total = ALiBi(slopes) + Toeplitz(toeplitz) + RelativeKeys(relative)
    assert_close(tile(total, *area, q=q), sum(dense.values()))


@given(st.integers(0, 7), st.integers(0, 7))
def test_a_relative_bias_moves_with_the_sequence(i, j):
    bias = Toeplitz(table(HEADS, 5)) + Buckets(table(8, HEADS), max_distance=16)
    b, h = torch.tensor(0), torch.arange(HEADS)
    here = bias.at(b, h, torch.tensor(i), torch.tensor(j))
    assert_close(bias.at(b, h, torch.tensor(i + 9), torch.tensor(j + 9)), here)


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_a_dense_bias_is_cut_like_a_matrix(rows, keys, data):
    values = table(HEADS, 6, 6)
    first, start = data.draw(st.integers(0, 6 - rows)), data.draw(st.integers(0, 6 - keys))
    part = tile(DenseBias(values), range(first, first + rows), range(start, start + keys))
    assert torch.equal(part, values[:, first : first + rows, start : start + keys])


@pytest.mark.parametrize("kind", ["alibi", "toeplitz", "buckets", "relative", "dense", "sum"])
def test_gradients_reach_what_can_be_learned(kind):
    makers = {
        "alibi": (ALiBi, (HEADS,)),
        "toeplitz": (Toeplitz, (HEADS, 3)),
        "buckets": (Buckets, (8, HEADS)),
        "relative": (RelativeKeys, (3, FEAT)),
        "dense": (DenseBias, (HEADS, 3, 4)),
        "sum": (lambda t: Toeplitz(t) + ALiBi(t[:, 0]), (HEADS, 3)),
    }
    make, shape = makers[kind]
    q, k, learned = table(HEADS, 3, FEAT), table(HEADS, 4, FEAT), table(*shape).requires_grad_()
    assert any(t.requires_grad for t in make(learned).tensors)
    torch.autograd.gradcheck(lambda t: attention_weights(q, k, bias=make(t)), learned)


@given(
    st.booleans(),
    st.sampled_from([4, 8, 20, 32, 64]),
    st.integers(3, 400),
    st.lists(st.integers(-600, 600), min_size=1, max_size=50),
)
def test_buckets_are_those_of_t5(both_sides, count, furthest, ahead):
    from transformers.models.t5.modeling_t5 import T5Attention

    if furthest <= count:  # T5 itself takes the logarithm of less than one there
        furthest += count
    distances = torch.tensor(ahead)
    ours = Buckets(torch.zeros(count, HEADS), both_sides, furthest).bucket(distances)
    theirs = T5Attention._relative_position_bucket(distances, both_sides, count, furthest)
    assert torch.equal(ours, theirs)


def test_buckets_are_those_of_t5_at_its_own_sizes_for_every_distance():
    from transformers.models.t5.modeling_t5 import T5Attention

    for both_sides in (True, False):
        distances = torch.arange(-5000, 5000)
        ours = Buckets(torch.zeros(32, HEADS), both_sides).bucket(distances)
        theirs = T5Attention._relative_position_bucket(distances, both_sides, 32, 128)
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Toeplitz(torch.zeros(1, 4)),
            "table: needs an odd count, distances -radius … radius, got 4",
        ),
        (
            lambda: RelativeKeys(torch.zeros(4, 1)),
            "table: needs an odd count, distances -radius … radius, got 4",
        ),
        (lambda: ALiBi(torch.zeros(3)).check(2, 4), "slopes: needs one for each of 2 heads, got 3"),
        (
            lambda: Buckets(torch.zeros(8, 3)).check(2, 4),
            "table: needs one for each of 2 heads, got 3",
        ),
        (
            lambda: RelativeKeys(torch.zeros(3, 5)).check(2, 4),
            "table: needs head_dim=4 as q has, got 5",
        ),
        (
            lambda: tile(DenseBias(torch.zeros(2, 2)), range(2), range(3)),
            "bias: needs at least 2 queries by 3 keys, got 2 by 2",
        ),
    ],
)
def test_a_bias_that_does_not_fit_raises(make, message):
    with pytest.raises(ShapeError) as error:
        make()
    assert str(error.value) == message
