"""Log-mel features: the same in chunks as at once, and the same as the published ones."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import WhisperFeatureExtractor, audio_utils

from regard.errors import ShapeError
from regard.ops import frame_sizes, log_mel, mel_filters, mel_frame_count

rates = st.sampled_from([8000, 16000])
scales = st.sampled_from(["htk", "slaney"])


def wave(samples: int) -> torch.Tensor:
    return torch.randn(samples, dtype=torch.float64)


def test_a_pure_tone_is_loudest_in_the_filter_around_it():
    rate, hertz, mels = 16000, 1000, 40
    tone = torch.sin(2 * torch.pi * hertz * torch.arange(rate, dtype=torch.float64) / rate)
    edges = 700 * (10 ** (torch.linspace(0, 2595 * np.log10(1 + 8000 / 700), 42) / 2595) - 1)
    nearest = int((edges[1:-1] - hertz).abs().argmin())
    assert (log_mel(tone, rate, n_mels=mels).argmax(-1) == nearest).all()


def test_energy_of_a_single_click_by_hand():
    # one sample of 1 in the middle of the window, where hann is 1: |FFT|² is 1 at every frequency
    click = torch.zeros(200, dtype=torch.float64)
    click[100] = 1
    expected = mel_filters(4, 8000, 256).sum(-1).log()
    assert_close(log_mel(click, 8000, n_mels=4)[0], expected)


def test_twice_as_loud_is_log_4_more():
    x = wave(1000)
    assert_close(log_mel(2 * x) - log_mel(x), torch.full((4, 80), np.log(4), dtype=torch.float64))


@given(rate=rates, samples=st.integers(0, 2000), data=st.data())
def test_in_pieces_the_frames_are_the_same(rate, samples, data):
    x, hop = wave(samples), frame_sizes(rate)[1]
    tail, got = x[:0], []
    cuts = sorted(data.draw(st.lists(st.integers(0, samples), max_size=5)))
    for start, stop in zip([0, *cuts], [*cuts, samples], strict=True):
        tail = torch.cat([tail, x[start:stop]])
        got.append(log_mel(tail, rate))
        tail = tail[mel_frame_count(len(tail), rate) * hop :]
    assert_close(torch.cat(got), log_mel(x, rate))


@given(rate=rates, samples=st.integers(0, 2000))
def test_frames_are_counted_right(rate, samples):
    assert log_mel(wave(samples), rate).shape == (mel_frame_count(samples, rate), 80)


@given(rate=rates, scale=scales, mels=st.integers(1, 80))
def test_neighbouring_htk_filters_share_each_frequency_fully(rate, scale, mels):
    filters = mel_filters(mels, rate, 1024, "htk")
    first, last = (int(filters[m].argmax()) for m in (0, -1))
    between = filters[:, first + 1 : last].sum(0)  # between the outer peaks they sum to one
    assert_close(between, torch.ones_like(between))


def test_gradients_pass():
    x = wave(420).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_mel(x, n_mels=3), x)


@given(rate=rates, scale=scales, mels=st.integers(1, 64))
def test_filters_are_those_of_transformers(rate, scale, mels):
    theirs = audio_utils.mel_filter_bank(
        257, mels, 0, rate / 2, rate, "slaney" if scale == "slaney" else None, scale
    )
    assert_close(mel_filters(mels, rate, 512, scale), torch.from_numpy(theirs.T))


@given(rate=rates, scale=scales, samples=st.integers(400, 3000))
def test_features_are_those_of_transformers(rate, scale, samples):
    (window, hop), x = frame_sizes(rate), wave(samples)
    fft = 512 if rate == 16000 else 256
    theirs = audio_utils.spectrogram(
        x.numpy(),
        audio_utils.window_function(window, "hann"),
        frame_length=window,
        hop_length=hop,
        fft_length=fft,
        center=False,
        power=2.0,
        mel_filters=mel_filters(40, rate, fft, scale).mT.numpy(),
        log_mel="log",
        dtype=np.float64,
    )
    # their FFT runs in complex64
    ours = log_mel(x, rate, n_mels=40, mel_scale=scale)
    assert_close(ours, torch.from_numpy(theirs.T), atol=1e-4, rtol=1e-4)


def test_whisper_reads_these_features_padded_and_rescaled():
    x = torch.randn(16000)
    extractor = WhisperFeatureExtractor(chunk_length=1)
    theirs = extractor(x.numpy(), sampling_rate=16000, return_tensors="pt").input_features[0]
    mirrored = torch.cat([x[1:201].flip(0), x, x[-201:-1].flip(0)])
    ours = log_mel(mirrored, mel_scale="slaney", n_fft=400)[:-1] / np.log(10)
    ours = (torch.maximum(ours, ours.max() - 8) + 4) / 4
    assert_close(ours.mT, theirs, atol=1e-5, rtol=1e-5)


def test_too_many_mels_is_an_error_with_a_way_out(users_view):
    with pytest.raises(ShapeError, match=r"n_mels: needs .* got 200, \d+ of them empty; try fewer"):
        log_mel(torch.zeros(400), n_mels=200)
    with pytest.raises(ShapeError, match="mels: needs 1 or more, got 0"):
        mel_filters(0, 16000, 512)
    with pytest.raises(ShapeError, match="fft: needs at least the 400 samples of a frame, got 256"):
        log_mel(torch.zeros(400), n_fft=256)
    with pytest.raises(ShapeError, match="rate: needs 1000 or more .* got 16"):
        log_mel(torch.zeros(400), sample_rate=16)
