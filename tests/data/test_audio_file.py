"""Audio files: mixed, resampled, and their problems reported."""

import math
import time

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.data import AudioFile, PeakNormalizer, Resampler
from regard.errors import ConfigError, FileError


def sine(rate: int, seconds: float = 0.5, pitch: float = 440.0) -> torch.Tensor:
    return torch.sin(2 * math.pi * pitch * torch.arange(int(rate * seconds)).double() / rate)


def resampled(wave: torch.Tensor, old: int, new: int, sizes: list[int]) -> torch.Tensor:
    resample = Resampler(old, new)
    return torch.cat([*(resample(piece) for piece in wave.split(sizes)), resample.finish()])


@pytest.mark.parametrize(
    ("old", "new"), [(44100, 8000), (48000, 16000), (11025, 8000), (8000, 16000), (16000, 8000)]
)
def test_a_tone_is_the_same_tone_at_another_rate(old, new):
    got = resampled(sine(old), old, new, [int(old * 0.5)])
    assert abs(len(got) - new // 2) <= 1
    assert_close(got[200:-200], sine(new)[: len(got)][200:-200], atol=3e-4, rtol=0)


def test_what_the_new_rate_cannot_hold_is_taken_out_and_not_folded_down():
    got = resampled(sine(16000, pitch=5000.0), 16000, 8000, [8000])
    assert got[200:-200].abs().max() < 2e-3


pieces = st.lists(st.integers(1, 400), min_size=1, max_size=8)


@given(sizes=pieces, rates=st.sampled_from([(44100, 8000), (8000, 16000), (1000, 1001)]))
def test_resampling_does_not_depend_on_the_chunks(sizes, rates):
    wave = torch.randn(sum(sizes))
    whole = resampled(wave, *rates, [len(wave)])
    assert len(whole) == -(-len(wave) * rates[1] // rates[0])
    assert_close(resampled(wave, *rates, sizes), whole, atol=1e-6, rtol=0)


@given(sizes=pieces)
def test_peak_normalization_does_not_depend_on_the_chunks(sizes):
    wave = torch.randn(sum(sizes)) * 0.1
    level, whole = PeakNormalizer(100, half_life=1.0), PeakNormalizer(100, half_life=1.0)
    got = torch.cat([*(level(piece) for piece in wave.split(sizes)), level.finish()])
    assert len(got) == len(wave)
    assert_close(got, torch.cat([whole(wave), whole.finish()]), atol=1e-6, rtol=0)


def test_quiet_audio_is_amplified_and_silence_is_not():
    wave = sine(8000).float()
    soft, loud = PeakNormalizer(8000)(wave * 0.01), PeakNormalizer(8000)(wave)
    assert_close(soft, loud, atol=1e-5, rtol=0)
    assert PeakNormalizer(8000)(wave * 1e-5).std() < 0.04
    assert 0.9 < loud.abs().max() < 1.2


def heard(path, rate: int = 8000) -> tuple[torch.Tensor, list[str], bool]:
    sound = AudioFile(path, rate)
    return torch.cat(list(sound.chunks())), sound.notes, sound.is_complete


def test_channels_are_mixed_and_rates_brought_to_one_and_both_are_reported(tmp_path):
    file = tmp_path / "two.wav"
    both = torch.stack([sine(16000), torch.zeros(8000)], 1)
    soundfile.write(file, both.numpy(), 16000)
    wave, notes, whole = heard(file)
    assert notes == [
        "2 channels mixed to one", "resampled from 16000 to 8000 Hz"
    ]  # fmt: skip
    assert whole
    assert_close(wave[200:-200].double(), 0.5 * sine(8000)[200:-200], atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_a_truncated_file_is_read_as_far_as_it_goes_and_reported(tmp_path, kind):
    file = tmp_path / f"cut.{kind}"
    soundfile.write(file, np.random.default_rng(0).uniform(-0.5, 0.5, 16000), 8000)
    file.write_bytes(file.read_bytes()[:16000])
    wave, notes, whole = heard(file)
    assert not whole
    assert 2000 < len(wave) < 12000
    assert "of 2.00 s" in notes[-1]


def test_a_header_that_did_not_know_its_length_is_no_damage(tmp_path):
    file = tmp_path / "pipe.wav"
    soundfile.write(file, sine(8000).numpy(), 8000, subtype="PCM_16")
    raw = file.read_bytes()
    at = raw.index(b"data") + 4
    file.write_bytes(raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :])
    wave, notes, whole = heard(file)
    assert (len(wave), notes, whole) == (4000, [], True)


def test_silence_and_samples_that_are_no_number_are_reported(tmp_path):
    file = tmp_path / "odd.wav"
    soundfile.write(file, np.array([np.nan] * 2 + [0.0] * 998, dtype="float32"), 8000, "FLOAT")
    wave, notes, _ = heard(file)
    assert wave.abs().max() == 0
    assert notes[0] == "2 samples are not finite, replaced by 0"
    assert notes[1].startswith("silence: ")


def test_files_without_audio_raise(tmp_path, users_view):
    def bad(name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        AudioFile(tmp_path / name, 8000)

    with pytest.raises(FileError, match="e.wav: needs to be a sound file, got an empty one"):
        bad("e.wav", b"")
    with pytest.raises(FileError, match=r"x.wav: needs to be WAV, FLAC or OGG, got .*; try"):
        bad("x.wav", b"hello" * 99)
    with pytest.raises(FileError, match=r"h.wav: needs to be WAV, FLAC or OGG, got .*; try"):
        bad("h.wav", b"RIFF\x24\x00\x00\x00WAVEfmt ")
    soundfile.write(tmp_path / "none.wav", np.zeros(0), 8000)
    with pytest.raises(FileError, match="none.wav: needs audio, got a header and 0 samples"):
        AudioFile(tmp_path / "none.wav", 8000)
    with pytest.raises(ConfigError, match="orig_rate: needs 1000 to 1000000 Hz, got 0"):
        Resampler(0, 8000)


@pytest.mark.parametrize("old", [999_983, 44_101, 11_027])
def test_rates_without_a_common_divisor_cost_no_more_than_others(old):
    began = time.process_time()
    resample = Resampler(old, 8000)
    t = torch.arange(old, dtype=torch.float64) / old
    wave = torch.sin(2 * torch.pi * 440 * t)
    new = torch.cat([resample(wave), resample.finish()])
    assert time.process_time() - began < 3
    assert resample.filters.nbytes < 64 << 20
    exact = torch.sin(2 * torch.pi * 440 * torch.arange(8000, dtype=torch.float64) / 8000)
    assert (new - exact)[200:-200].abs().max() < 1e-4  # 44_100 has the same ripple
