"""Positions: sinusoids rotate when shifted, RoPE scores depend on distance, tables resize."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.ops import (
    RopeScaling,
    apply_rope,
    frequencies,
    interpolate_positions,
    lookup_positions,
    sinusoidal,
    sinusoidal_shift,
)

even = st.integers(1, 8).map(lambda x: 2 * x)
place = st.integers(0, 500)


@given(place, st.integers(-200, 200), even)
def test_a_shift_is_the_same_rotation_at_every_position(p, step, dim):
    moved = sinusoidal_shift(step, dim) @ sinusoidal(torch.tensor(p), dim)
    assert_close(moved, sinusoidal(torch.tensor(p + step), dim), atol=1e-11, rtol=0)
    turn = sinusoidal_shift(step, dim)
    assert_close(turn @ turn.mT, torch.eye(dim).double(), atol=1e-12, rtol=0)


@given(place, place, st.integers(0, 300), even)
def test_the_product_of_two_codes_depends_on_their_distance_only(p, r, step, dim):
    def product(a: int, b: int) -> torch.Tensor:
        one, other = sinusoidal(torch.tensor([a, b]), dim)
        return one @ other

    assert_close(product(p, r), product(p + step, r + step), atol=1e-10, rtol=0)


@given(place, even)
def test_codes_have_one_length_and_stay_within_one(p, dim):
    code = sinusoidal(torch.tensor(p), dim)
    assert code.abs().max() <= 1
    assert_close(code.norm(), torch.tensor((dim / 2) ** 0.5, dtype=torch.float64))


def test_two_thousand_positions_are_distinct():
    codes = sinusoidal(torch.arange(2000), 64)
    apart = torch.cdist(codes, codes).fill_diagonal_(torch.inf)
    assert 1.46 < apart.min() < 1.48


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), even, st.booleans())
def test_rotary_scores_depend_on_the_distance_only(p, r, step, head_dim, halves):
    q, k = torch.randn(2, 1, head_dim, dtype=torch.float64)

    def score(a: int, b: int) -> torch.Tensor:
        turned = (
            apply_rope(x, torch.tensor([at]), rotate_half=halves) for x, at in ((q, a), (k, b))
        )
        return next(turned) @ next(turned).mT

    assert_close(score(p, r), score(p + step, r + step), atol=1e-11, rtol=0)
    assert_close(score(p, p), q @ k.mT, atol=1e-11, rtol=0)


@given(even, st.integers(1, 5))
def test_rotary_by_halves_is_the_same_turn_with_features_in_another_order(head_dim, time):
    x, at = torch.randn(time, head_dim, dtype=torch.float64), torch.arange(time)
    order = torch.arange(head_dim).view(-1, 2).mT.flatten()  # neighbours to halves
    assert_close(apply_rope(x, at)[:, order], apply_rope(x[:, order], at, rotate_half=True))


@given(even, st.integers(1, 5), st.sampled_from([100.0, 10000.0]))
def test_rotary_by_halves_is_that_of_llama(head_dim, time, base):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x, at = torch.randn(1, 2, time, head_dim), torch.arange(time)
    angles = (at[:, None] * frequencies(head_dim, base).float()).repeat(1, 2)[None]
    theirs, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())
    assert_close(apply_rope(x, at, base, rotate_half=True), theirs)


@pytest.mark.parametrize("halves", [False, True])
def test_rotary_keeps_lengths_and_its_gradient_is_right(halves):
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    at = torch.tensor([0, 5, 9])
    assert_close(apply_rope(x, at, rotate_half=halves).norm(dim=-1), x.norm(dim=-1))
    torch.autograd.gradcheck(lambda x: apply_rope(x, at, rotate_half=halves), x)


def test_a_table_gives_the_row_of_each_position_and_a_gradient_to_it():
    table = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    at = torch.tensor([[4, 0], [1, 1]])
    assert torch.equal(lookup_positions(table, at), table[at])
    torch.autograd.gradcheck(lambda t: lookup_positions(t, at), table)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2))
def test_interpolation_to_the_same_grid_is_the_identity(high, wide, extra):
    table = torch.randn(extra + high * wide, 3)
    assert torch.equal(
        interpolate_positions(table, (high, wide), (high, wide), prefix_tokens=extra), table
    )


@given(st.integers(1, 6), st.integers(1, 6))
def test_resizing_keeps_the_extra_rows_and_a_constant_grid(high, wide):
    table = torch.cat([torch.randn(1, 2), torch.full((12, 2), 0.5)]).double()
    resized = interpolate_positions(table, (3, 4), (high, wide))
    assert resized.shape == (1 + high * wide, 2)
    assert torch.equal(resized[0], table[0])
    assert_close(resized[1:], torch.full_like(resized[1:], 0.5))


def test_gradients_through_resizing_are_right():
    table = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda t: interpolate_positions(t, (2, 2), (3, 4)), table)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: frequencies(5), "dim: needs an even number, sine and cosine share a pair, got 5"),
        (
            lambda: apply_rope(torch.zeros(2, 3), torch.arange(2)),
            "dim: needs an even number, sine and cosine share a pair, got 3",
        ),
        (
            lambda: lookup_positions(torch.zeros(4, 2), torch.tensor([1, 4])),
            "positions: needs at most 3, the end of the learned table, got 4; "
            "try a shorter input, or sinusoidal or rotary positions",
        ),
        (
            lambda: interpolate_positions(torch.zeros(4, 2), (2, 2), (3, 3)),
            "table: needs 1 + 2 · 2 rows for this grid, got 4",
        ),
    ],
)
def test_invalid_positions_raise(make, message):
    with pytest.raises(ShapeError) as error:
        make()
    assert str(error.value) == message


SCALED = {  # of published checkpoints: transformers' names, and ours
    "linear": ({"factor": 8.0}, RopeScaling("linear", 8.0)),
    "llama3": (
        {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        RopeScaling("llama3", 8.0),
    ),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 32768},
        RopeScaling("yarn", 4.0, 32768, high=32.0, amplitude=0.1 * math.log(4) + 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize(("head_dim", "base"), [(128, 500000.0), (64, 10000.0), (6, 100.0)])
def test_scaled_frequencies_are_those_of_transformers(kind, head_dim, base):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs, ours = SCALED[kind]
    rope = {"rope_type": kind, "rope_theta": base, **theirs}
    sizes = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "head_dim": head_dim}
    try:
        config = LlamaConfig(**sizes, rope_parameters=rope)
    except TypeError:
        pytest.skip("this transformers names it rope_scaling")
    want, amplitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    got = frequencies(head_dim, base, scaling=ours)
    assert_close(got.float(), want, rtol=1e-5, atol=0)
    assert ours.amplitude == pytest.approx(amplitude)


def test_only_the_first_features_are_rotated():
    x, positions = torch.randn(3, 5, 8), torch.arange(5)
    for halves in (False, True):
        y = apply_rope(x, positions, rotate_half=halves, rope_dim=4)
        assert torch.equal(y[..., 4:], x[..., 4:])
        assert_close(y[..., :4], apply_rope(x[..., :4].clone(), positions, rotate_half=halves))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_type": "dynamic"}, "rope_type: needs linear, llama3 or yarn, got 'dynamic'"),
        ({"factor": 0.0}, "rope_scaling: needs factor"),
        ({"low": 4.0}, "rope_scaling: needs factor"),
    ],
)
def test_a_scaling_that_is_none_is_refused(changes, message, users_view):
    with pytest.raises(ConfigError, match=message):
        RopeScaling(**{"rope_type": "llama3", "factor": 8.0} | changes)
