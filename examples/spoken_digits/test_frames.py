"""Strings of joined frames match the frames of joined waves."""

import math
import wave
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from frames import PITCHES, DigitAugmentation, FrameBank, FramePlan, _trim_points, digit_batches
from recordings import SpokenDigits, WavePlan, render_waves
from torch.testing import assert_close

from regard.data import CharTokenizer, seeded_generator
from regard.data.audio.augmentation import LOG_MEL_FLOOR
from regard.errors import ConfigError
from regard.ops import log_mel

STILL = DigitAugmentation(vtlp=0, eq=0, tempo_range=0)
MUCH = DigitAugmentation(speaker_interpolation=0.5, speaker_mixing=0.5, reverb=0.5, noise_tilt=1.0)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two speakers of three digits; each digit has its pitch, a speaker has a share of it."""
    folder = tmp_path_factory.mktemp("recordings")
    for digit in range(3):
        for share, speaker in ((1.0, "ann"), (1.1, "bob")):
            for number in (5, 6):
                time = np.arange(2400 + 400 * number) / 8000
                tone = 8000 * np.sin(2 * np.pi * (500 + 600 * digit) * share * time)
                with wave.open(str(folder / f"{digit}_{speaker}_{number}.wav"), "wb") as file:
                    file.setparams((1, 2, 8000, 0, "NONE", ""))
                    file.writeframes(tone.astype("<i2").tobytes())
    return SpokenDigits(folder, speed=(0.5, 2.0))


@pytest.fixture(scope="module")
def voices(source):
    return FrameBank(source, mels=20)


def plan(voices, rows, **changes):
    sizes = tuple(voices.sizes[row] for row in rows)
    frame_plan = FramePlan(
        "0" * len(rows), rows, rows, 0.0, sizes, (5,) * (len(rows) + 1), math.inf, 0.0
    )
    return frame_plan._replace(**changes)


def plain(take):
    """The row of a take as it was recorded: the speeds are 0.5 … 1 … 2."""
    return take * PITCHES + PITCHES // 2


def test_a_take_at_twice_the_speed_has_half_the_frames_and_twice_the_pitch(voices):
    slow, fast = (voices.frames[voices.starts[row] :][: voices.sizes[row]] for row in (3, 6))
    assert abs(len(slow) - 2 * len(fast)) <= 5  # the frames at the borders stay
    bands = slow[20].argmax(), fast[10].argmax()
    assert bands[1] > 1.5 * bands[0]


def test_joined_frames_are_those_of_the_joined_wave(source, voices):
    takes = source.recordings["train"]["ann"][0][0], source.recordings["train"]["ann"][1][0]
    rows = plain(0), plain(2)
    x, counts = voices.join([plan(voices, rows)])
    gaps = 5 * 80 + 200 - 40, 5 * 80 + 2 * 200 - 40 - 80, 1600
    said = WavePlan("01", takes, gaps, (1.0, 1.0), 1.0, math.inf)
    want = log_mel(
        render_waves([said], torch.from_numpy(source.samples), seeded_generator(0))[0],
        n_mels=20,
        sample_rate=8000,
    )
    first = slice(5, 5 + voices.sizes[rows[0]])
    assert_close(x[0, first].exp(), want[0, first].exp(), rtol=1e-3, atol=1e-3)
    assert int(counts) == sum(voices.sizes[row] for row in rows) + 15
    assert (x[0, :5] == LOG_MEL_FLOOR).all()


def test_a_voice_between_two_is_their_mean_and_alone_is_itself(voices):
    one, two = plain(0), plain(6)
    size = voices.sizes[one]
    ends = [voices.join([plan(voices, (row,), sizes=(size,))])[0] for row in (one, two)]
    half, _ = voices.join([plan(voices, (one,), other_rows=(two,), other_weight=0.5)])
    assert_close(half, (ends[0] + ends[1]) / 2)


def test_a_bend_moves_what_is_inside_a_digit_and_neither_end(voices):
    row = plain(1)
    frames = voices.frames[voices.starts[row] :][: voices.sizes[row]]
    for bends in ((0.6, 0.0), (-0.6, 0.6)):
        x, _ = voices.join([plan(voices, (row,), time_warps=(bends,))])
        bent = x[0, 5 : 5 + len(frames)]
        assert_close(bent[[0, -1]], frames[[0, -1]])
        t = torch.arange(len(frames)) / (len(frames) - 1)
        a, b = bends
        moved = t + (a * (math.pi * t).sin() + b / 4 * (2 * math.pi * t).sin()) / math.pi
        assert (moved.diff() > 0).all()
        middle = len(frames) // 2
        real = float(moved[middle]) * (len(frames) - 1)
        below = int(real)
        want = torch.lerp(frames[below], frames[below + 1], real - below)
        assert_close(bent[middle], want, atol=1e-3, rtol=1e-3)


def test_a_bend_that_would_turn_time_back_is_refused():
    with pytest.raises(ConfigError, match=r"time_warp: needs 0 to 0\.65, .* backwards, got 0\.7"):
        DigitAugmentation(time_warp=0.7)


def test_a_digit_that_is_cut_keeps_its_frames_between_the_trim_points(voices):
    row = plain(1)
    frames = voices.frames[voices.starts[row] :][: voices.sizes[row]]
    last = len(frames) - 1
    cut = plan(voices, (row,), sizes=(last - 11,), trims=((8 / last, 4 / last),))
    x, _ = voices.join([cut])
    assert_close(x[0, 5 : 5 + last - 11], frames[8 : last - 3], atol=1e-3, rtol=1e-3)


def test_takes_are_cut_where_they_get_loud():
    soft, loud = np.full((10, 4), -9.0), np.full((20, 4), -2.0)
    half = np.full((5, 4), -4.5)  # 2.5 nats below
    before, behind = _trim_points(np.concatenate([soft, half, loud, soft]))
    want = [15 / 44, *[10 / 44] * 3]
    assert_close(before[:4], want)
    assert_close(behind[:5], [10 / 44] * 5)
    assert before[-1] == behind[-1] == 0.0  # 8 nats below the loudest there is nothing to cut


def test_trimmed_strings_are_shorter_and_whole_ones_are_as_they_were(source):
    voices = FrameBank(source, mels=20)
    for row in range(len(voices.trims)):  # the tones of this source are loud all the time
        voices.trims[row] = [0.25] * 6, [0.5] * 6
    names = [f"train/{n}" for n in range(200)]
    whole, cut = (
        [voices.draw_plan(name, DigitAugmentation(trim_fraction=x)) for name in names]
        for x in (0.0, 0.4)
    )
    lost = [share for plan in cut for share in plan.trims]
    assert {before for before, _ in lost} == {0.0, 0.25}
    assert sum(before > 0 for before, _ in lost) / len(lost) == pytest.approx(0.4, abs=0.06)
    assert sum(behind > 0 for _, behind in lost) / len(lost) == pytest.approx(0.4, abs=0.06)
    assert all(share == (0.0, 0.0) for plan in whole for share in plan.trims)
    assert [plan.text for plan in whole] == [plan.text for plan in cut]
    assert sum(sum(plan.sizes) for plan in cut) < 0.8 * sum(sum(plan.sizes) for plan in whole)


@pytest.mark.parametrize(
    "name", ["gain_jitter", "trim_fraction", "speaker_interpolation", "speaker_mixing"]
)
def test_a_share_is_none_to_all(name):
    with pytest.raises(ConfigError, match=rf"{name}: needs 0 to 1, got 1\.5"):
        DigitAugmentation(**{name: 1.5})


def test_a_second_view_has_the_same_text_and_timing(source):
    words = CharTokenizer.train(["0123456789"])
    frame_plan = {
        "mels": 20,
        "batch_size": 4,
        "seed": 3,
        "augmentation": DigitAugmentation(time_warp=0.5, eq=1.0, min_snr=45.0),
    }
    one, two = (
        next(iter(digit_batches(source, words, **frame_plan, second_view=again)))
        for again in (False, True)
    )
    assert set(two) - set(one) == {"frames_again"}
    assert all(torch.equal(one[name], two[name]) for name in one)
    first, second = two["frames"], two["frames_again"]
    assert not torch.allclose(first, second)
    # one voice is loud where the other is: frame by frame they go together
    loud = [x.amax(-1) - x.amax(-1).mean(1, keepdim=True) for x in (first, second)]
    assert torch.cosine_similarity(*loud).min() > 0.7


def test_strings_in_a_batch_do_not_touch(voices):
    plans = [plan(voices, (plain(0),)), plan(voices, (plain(2), plain(1)))]
    together, counts = voices.join(plans)
    alone, _ = voices.join(plans[:1])
    assert_close(together[:1, : int(counts[0])], alone)
    assert (together[0, int(counts[0]) :] == LOG_MEL_FLOOR).all()


def test_noise_of_frames_is_that_of_waves(source, voices):
    frame_plan = plan(voices, (plain(0),), snr=10.0)
    x = torch.full((1, 4000, 20), LOG_MEL_FLOOR)
    got = voices.add_noise(x, [frame_plan], seeded_generator(0), noise_tilt=0.0)[0]
    power = float(voices.powers[plain(0)])
    waves = torch.randn(8000 * 20, generator=seeded_generator(1)) * math.sqrt(power / 10)
    want = log_mel(waves, 8000, n_mels=20)
    assert_close(got.mean(0), want.mean(0), atol=0.15, rtol=0)
    assert_close(got.std(0), want.std(0), atol=0.15, rtol=0)


def test_a_gain_is_added_and_a_clean_string_stays_clean(voices):
    x = torch.zeros(1, 3, 20)
    frame_plan = plan(voices, (plain(0),), gain=2.0)
    assert_close(voices.add_noise(x, [frame_plan], seeded_generator(0), noise_tilt=1.0), x + 2)


def test_a_batch_depends_on_its_number_alone_and_says_its_text(source):
    words = CharTokenizer.train(["0123456789"])
    first = list(islice(digit_batches(source, words, mels=20, batch_size=3, augmentation=MUCH), 3))
    second = digit_batches(source, words, mels=20, batch_size=3, augmentation=MUCH)
    second.restore({"seed": 0, "number": 2})
    assert_close(next(iter(second)), first[2], rtol=0, atol=0)
    assert first[0]["frames"].shape[1] == int(first[0]["frames_lengths"].max())


def test_a_string_is_of_one_voice_unless_mixed(voices):
    def speakers(change):
        drawn = [voices.draw_plan(f"x{n}", change).rows for n in range(40)]
        return [{row // PITCHES // 6 for row in rows} for rows in drawn]  # six takes a speaker

    assert max(map(len, speakers(STILL))) == 1
    assert max(map(len, speakers(replace(STILL, speaker_mixing=1.0)))) == 2


def test_still_strings_keep_their_sizes_within_a_tenth(voices):
    frame_plan = voices.draw_plan("a", STILL)
    for row, size in zip(frame_plan.rows, frame_plan.sizes, strict=True):
        assert abs(size / voices.sizes[row] - 1) < 0.12
