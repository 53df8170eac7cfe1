"""Augmentation of log-mel frames: gain jitter, reverberation, equalisation."""

import torch
from torch.testing import assert_close

from regard.data import seeded_generator
from regard.data.audio.augmentation import (
    LOG_MEL_FLOOR,
    REVERB_FRAMES,
    gain_jitter,
    random_eq_curves,
    reverb,
)


def test_what_is_soft_gets_softer_or_louder_and_the_loudest_stays():
    x = torch.tensor(
        [-1.0, -1.0, -1.0, -1.0, -1.0, -5.0, -5.0, -5.0, -5.0, -5.0, LOG_MEL_FLOOR, LOG_MEL_FLOOR]
    )
    x = x[None, :, None].expand(300, -1, 4)
    y = gain_jitter(x, 0.5, seeded_generator(0))
    assert torch.equal(y[:, 0], x[:, 0])
    moved = (y - x)[:, 7, 0]
    assert moved.abs().max() <= 0.5 * 4 + 1e-4
    assert moved.min() < -1.8
    assert moved.max() > 1.8
    assert torch.equal(y[:, 10:], x[:, 10:])  # nothing is not made louder


def test_reverberation_follows_the_signal_and_decays():
    x = torch.full((8, 40, 3), -99.0)
    x[:, 10] = 0.0
    y = reverb(x, 0.5, seeded_generator(1))
    assert_close(y[:, :11], x[:, :11].clamp(min=LOG_MEL_FLOOR))
    some = y[:, 11, 0] > -5
    assert 0 < int(some.sum()) < 8
    assert (y[some, 11 : 9 + REVERB_FRAMES].diff(dim=1) < 0).all()
    assert_close(y[:, 10 + REVERB_FRAMES :], x[:, 10 + REVERB_FRAMES :].clamp(min=LOG_MEL_FLOOR))


def test_eq_curves_are_smooth_and_have_the_requested_size():
    drawn = random_eq_curves(400, 40, 3.0, seeded_generator(0))
    assert 2.5 < float(drawn.std()) < 4.0
    assert float(drawn.diff().abs().mean()) < 0.3 * float(drawn.abs().mean())
