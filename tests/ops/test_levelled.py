"""Features against running means: no loudness, no microphone, no future, no seams."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.ops import levelled
from regard.ops.levelled import BLOCK, FALL, GUESS, GUESSED, KEEP, LOUD, SILENCE


def frame_by_frame(x, depth):
    """The rule as it is written."""
    level, weight, sums, rows = torch.tensor(SILENCE).to(x), 0.0, torch.zeros_like(x[0]), []
    for frame in x:
        loud = frame.logsumexp(0)
        level = torch.stack([loud, level - FALL, torch.tensor(SILENCE).to(x)]).max()
        if loud > level - LOUD:
            weight, sums = KEEP * weight + 1, KEEP * sums + frame
        mean = (sums + GUESSED * (level + GUESS)) / (weight + GUESSED)
        rows.append(frame.maximum(level - depth) - mean)
    return torch.stack(rows)


def test_it_is_the_rule_frame_by_frame_with_its_gradient():
    x = (3 * torch.randn(40, 4, dtype=torch.float64)).requires_grad_()
    got, want = levelled(x, depth=5.0)[0], frame_by_frame(x, 5.0)
    assert_close(got, want)
    weights = torch.randn_like(got)
    mine, theirs = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want))
    assert_close(mine, theirs)


def test_an_hour_of_sound_stays_in_range():
    y, state = levelled(torch.randn(360_000, 1))
    assert y.isfinite().all()
    assert_close(state[1], torch.tensor(1 / (1 - KEEP)), rtol=0.1, atol=0)


@given(st.floats(-6, 6))
def test_a_louder_sound_has_the_same_features(gain):
    x = torch.randn(2, 30, 5, dtype=torch.float64)
    assert_close(levelled(x + gain)[0], levelled(x)[0])


def test_another_microphone_is_forgotten():
    x = torch.randn(900, 20)
    colour = torch.linspace(-2, 2, 20)
    apart = (levelled(x + colour)[0] - levelled(x)[0]).abs().mean(1)
    assert apart[0] > 0.9
    assert apart[-1] < 0.2


@given(st.integers(0, 20))
def test_any_cut_gives_what_the_whole_gives(at):
    x = 3 * torch.randn(2, 20, 5)
    whole, after = levelled(x, depth=4.0)
    first, state = levelled(x[:, :at], depth=4.0)
    second, last = levelled(x[:, at:], state, depth=4.0)
    assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-5)
    assert_close(last, after, rtol=1e-5, atol=1e-5)


def test_blocks_of_a_long_sound_have_no_seam():
    x = torch.randn(BLOCK + 20, 2, dtype=torch.float64)
    first, state = levelled(x[:7])
    assert_close(torch.cat([first, levelled(x[7:], state)[0]]), levelled(x)[0])


@pytest.mark.usefixtures("users_view")
def test_a_depth_of_nothing_is_refused():
    with pytest.raises(ShapeError, match="depth: needs more than 0, got 0; try 8"):
        levelled(torch.zeros(1, 1), depth=0)
