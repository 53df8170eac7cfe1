"""Simulated radio reception: every effect of keying and receiver is in the audio as drawn."""

from random import Random

import numpy as np
import pytest

from regard.data import Morse, seeded_generator
from regard.data.content.morse.channel import (
    Channel,
    Keying,
    SenderTiming,
    key_edges,
    render_keyings,
)

RATE = 8000


def played(text="PARIS", **channel) -> np.ndarray:
    """A text at 20 words per minute between two seconds of silence, through a channel."""
    edges, marks = (tuple(0.06 * t for t in row) for row in key_edges(text))
    plan = Keying(text, 20.0, edges, marks, 1.0, 1.0, Channel(**channel))
    return render_keyings([plan], RATE, seeded_generator(0))[0][0].double().numpy()


def power(wave: np.ndarray, low: float, high: float) -> float:
    spectrum = np.abs(np.fft.rfft(wave)) ** 2
    hertz = np.fft.rfftfreq(len(wave), 1 / RATE)
    return float(spectrum[(hertz >= low) & (hertz < high)].sum() / spectrum.sum())


def envelope(wave: np.ndarray) -> np.ndarray:
    return np.abs(wave[: len(wave) // 80 * 80]).reshape(-1, 80).max(1)


def test_the_default_is_a_clean_tone_at_its_pitch_between_silence():
    wave = played(pitch=1000.0)
    assert power(wave, 950, 1050) > 0.97
    assert not wave[:7990].any()
    assert np.abs(wave).max() == pytest.approx(1)


@pytest.mark.parametrize(
    ("channel", "low", "high"),
    [
        ({"hum": 0.5, "hum_pitch": 60.0}, 55, 65),
        ({"interference": 0.3, "interference_pitch": 1100.0}, 1090, 1110),
        (
            {"interference": 0.3, "interference_pitch": 1100.0, "interference_keyed": 1.0},
            1050,
            1150,
        ),
        ({"snr": 0.0}, 2000, 4000),
    ],
)
def test_what_else_is_on_the_air_stands_at_its_place_in_the_spectrum(channel, low, high):
    assert power(played(), low, high) < 1e-3 < 2e-2 < power(played(**channel), low, high)


def test_noise_of_a_narrow_filter_is_around_the_pitch_alone():
    wide, narrow = (played(snr=-10.0, noise_bandwidth=band) for band in (0.0, 200.0))
    assert power(wide, 0, 1200) < 0.5
    assert power(narrow, 0, 1200) > 0.9


def test_a_clipped_sound_stays_at_its_limits():
    flat = played(drive=30.0)
    assert (np.abs(flat) > 0.999).mean() > 5 * (np.abs(played()) > 0.999).mean()
    soft = played(drive=30.0, soft_clip=1.0)
    assert (np.abs(soft) > 0.95).mean() > 0.2


def test_gain_control_lifts_what_fades_and_the_noise_between():
    faded = {"fade_depth": 0.8, "fade_rate": 0.5, "snr": 20.0}
    plain, even = (
        envelope(played("TTTTTTTT", **faded)),
        envelope(played("TTTTTTTT", **faded, agc=1.0, agc_release=0.3)),
    )

    def spread(x: np.ndarray) -> float:
        loud = x[100:-100]
        return float(np.percentile(loud, 95) / np.percentile(loud, 60))

    assert spread(even) < spread(plain)
    assert np.median(even[-40:]) > 3 * np.median(plain[-40:])


def test_gain_control_leaves_the_code_of_a_clean_tone_as_loud_as_its_first_pop():
    loud = envelope(played("TTTT", agc=1.0, agc_release=0.05))
    assert (loud > 0.6).mean() > 0.2


def test_pitch_drifts_and_levels_and_offsets_are_as_drawn():
    wave = played("TTTTTTTTTTTT", drift=20.0)
    first, last = wave[8000:12000], wave[-16000:-8000]
    heights = [
        np.abs(np.fft.rfft(part, 1 << 15)).argmax() * RATE / (1 << 15) for part in (first, last)
    ]
    assert 30 < heights[1] - heights[0] < 90
    soft = played(gain=-40.0, dc_offset=0.25)
    assert np.abs(soft).max() == pytest.approx(0.01, rel=1e-3)
    assert np.median(soft) == pytest.approx(0.002, rel=0.05)  # a quarter below a peak of 1.25


def test_an_uneven_hand_is_uneven_by_what_is_reported_and_wide_gaps_are_wide():
    edges, _ = key_edges("EEEEEEEE" * 40, SenderTiming(jitter=0.2), Random(0))
    dots = np.diff(edges)[::2]
    assert 0.15 < dots.std() < 0.21
    assert 0.599 < dots.min() < dots.max() < 1.401
    edges, _ = key_edges("ET E", SenderTiming(spacing=2.0))
    assert np.diff(edges).tolist() == [1, 6, 3, 14, 1]


def test_a_pause_between_words_may_last_for_seconds():
    edges, _ = key_edges("E " * 99 + "E", SenderTiming(pause=50.0), Random(0))
    gaps = np.diff(edges)[1::2]
    assert 0.3 < (gaps > 7.5).mean() < 0.7
    assert 45 < gaps.max() <= 57
    plans = [Morse(radio_effects=True).draw_keying(f"train/0/{n}") for n in range(300)]
    longest = [max(np.diff(plan.edges)[1::2], default=0) for plan in plans]
    assert max(longest) > 3


def test_radio_sounds_begin_and_end_with_or_without_silence_at_any_level():
    plans = [
        Morse(radio_effects=True, empty_fraction=0.1).draw_keying(f"train/0/{n}")
        for n in range(300)
    ]
    for silence in ([plan.lead_silence for plan in plans], [plan.tail_silence for plan in plans]):
        assert 0.2 < sum(s == 0 for s in silence) / 300 < 0.4
        assert max(silence) > 2
    assert min(plan.channel.gain for plan in plans) < -38
    assert 0.05 < sum(not plan.text for plan in plans) / 300 < 0.16
    assert {plan.channel.drive > 0 for plan in plans} == {True, False}
