"""Online CMVN: independent of loudness and microphone, causal, without seams."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.ops import online_cmvn
from regard.ops.audio import (
    ACTIVE_MARGIN,
    BLOCK_FRAMES,
    LEVEL_DECAY,
    MEAN_DECAY,
    MIN_LEVEL,
    PRIOR_FRAMES,
    PRIOR_MEAN,
)


def frame_by_frame(x, depth):
    """The rule as it is written."""
    level, weight, sums, rows = torch.tensor(MIN_LEVEL).to(x), 0.0, torch.zeros_like(x[0]), []
    for frame in x:
        loud = frame.logsumexp(0)
        level = torch.stack([loud, level - LEVEL_DECAY, torch.tensor(MIN_LEVEL).to(x)]).max()
        if loud > level - ACTIVE_MARGIN:
            weight, sums = MEAN_DECAY * weight + 1, MEAN_DECAY * sums + frame
        mean = (sums + PRIOR_FRAMES * (level + PRIOR_MEAN)) / (weight + PRIOR_FRAMES)
        rows.append(frame.maximum(level - depth) - mean)
    return torch.stack(rows)


def test_it_is_the_rule_frame_by_frame_with_its_gradient():
    x = (3 * torch.randn(40, 4, dtype=torch.float64)).requires_grad_()
    got, want = online_cmvn(x, dynamic_range=5.0)[0], frame_by_frame(x, 5.0)
    assert_close(got, want)
    weights = torch.randn_like(got)
    mine, theirs = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want))
    assert_close(mine, theirs)


def test_an_hour_of_sound_stays_in_range():
    y, state = online_cmvn(torch.randn(360_000, 1))
    assert y.isfinite().all()
    assert_close(state[1], torch.tensor(1 / (1 - MEAN_DECAY)), rtol=0.1, atol=0)


@given(st.floats(-6, 6))
def test_a_louder_sound_has_the_same_features(gain):
    x = torch.randn(2, 30, 5, dtype=torch.float64)
    assert_close(online_cmvn(x + gain)[0], online_cmvn(x)[0])


def test_another_microphone_is_forgotten():
    x = torch.randn(900, 20)
    colour = torch.linspace(-2, 2, 20)
    apart = (online_cmvn(x + colour)[0] - online_cmvn(x)[0]).abs().mean(1)
    assert apart[0] > 0.9
    assert apart[-1] < 0.2


@given(st.integers(0, 20))
def test_a_split_stream_gives_the_same_result(at):
    x = 3 * torch.randn(2, 20, 5)
    whole, after = online_cmvn(x, dynamic_range=4.0)
    first, state = online_cmvn(x[:, :at], dynamic_range=4.0)
    second, last = online_cmvn(x[:, at:], state, dynamic_range=4.0)
    assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-5)
    assert_close(last, after, rtol=1e-5, atol=1e-5)


def test_blocks_of_a_long_sound_have_no_seam():
    x = torch.randn(BLOCK_FRAMES + 20, 2, dtype=torch.float64)
    first, state = online_cmvn(x[:7])
    assert_close(torch.cat([first, online_cmvn(x[7:], state)[0]]), online_cmvn(x)[0])


@pytest.mark.usefixtures("users_view")
def test_a_depth_of_nothing_is_refused():
    with pytest.raises(ShapeError, match="dynamic_range: needs more than 0, got 0; try 8"):
        online_cmvn(torch.zeros(1, 1), dynamic_range=0)
