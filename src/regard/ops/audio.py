"""Features of speech: log-mel spectra of waveforms, and their online normalisation."""

import math
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010  # the usual frame of speech recognition

MelScale = Literal["htk", "slaney"]
LEVEL_DECAY = 0.01  # per frame: the level falls by 4.3 dB in a second without sound
MIN_LEVEL = -12.0  # softer input is not amplified, or silence would become noise
ACTIVE_MARGIN = 3.0  # frames less than this below the level count as sound
MEAN_DECAY = math.exp(-1 / 150)  # of the running mean per frame of sound: 1.5 s
PRIOR_MEAN = -4.0  # of a band relative to the level, before any sound
PRIOR_FRAMES = 20  # weight of the prior, in frames
BLOCK_FRAMES = 1000  # frames at a time: MEAN_DECAY to a higher power would underflow


def log_mel(
    waveform: Float[Tensor, "*batch sample"],
    sample_rate: int = 16000,
    *,
    n_mels: int = 80,
    mel_scale: MelScale = "htk",
    n_fft: int | None = None,
    floor: float = 1e-10,
) -> Float[Tensor, "*batch time mel"]:
    """Log-mel spectrogram.

    x[t, m] = log max(floor, Σ_f filter[m, f] · |FFT(hann ⊙ frame_t)[f]|²)

    Frames of 25 ms every 10 ms, zero-padded to `n_fft`. Only complete frames are returned, so a
    frame never changes when more samples arrive: a stream can be split anywhere, carrying over the
    samples after `mel_frame_count` frames.

    Args:
        waveform: samples.
        sample_rate: samples per second.
        n_mels: number of mel filters.
        mel_scale: "htk" or "slaney", see `mel_filters`.
        n_fft: length of the FFT, by default the next power of two.
        floor: smallest power before the logarithm.

    >>> log_mel(torch.zeros(560), 16000, n_mels=2)
    tensor([[-23.0259, -23.0259],
            [-23.0259, -23.0259]])
    """
    window, hop = frame_sizes(sample_rate)
    n_fft = 1 << (window - 1).bit_length() if n_fft is None else n_fft
    if n_fft < window:
        raise ShapeError(f"n_fft: needs at least the {window} samples of a frame, got {n_fft}")
    filters = _cached_filters(n_mels, sample_rate, n_fft, mel_scale).to(waveform)
    if waveform.shape[-1] < window:
        return waveform.new_zeros(*waveform.shape[:-1], 0, n_mels)
    hann = torch.hann_window(window, dtype=waveform.dtype, device=waveform.device)
    spectrum = torch.fft.rfft(waveform.unfold(-1, window, hop) * hann, n_fft)
    power = spectrum.real.square() + spectrum.imag.square()  # `abs` takes a root
    return (power @ filters.mT).clamp(min=floor).log()


def mel_frame_count(samples: int, sample_rate: int = 16000) -> int:
    """The number of complete frames; a stream continues at sample `mel_frame_count(n) · hop`.

    frames = 1 + ⌊(samples - window) / hop⌋, or 0

    >>> mel_frame_count(399), mel_frame_count(400), mel_frame_count(560)
    (0, 1, 2)
    """
    window, hop = frame_sizes(sample_rate)
    return max(0, 1 + (samples - window) // hop)


def frame_sizes(sample_rate: int) -> tuple[int, int]:
    """Window and hop in samples: 25 ms and 10 ms.

    >>> frame_sizes(8000)
    (200, 80)
    """
    if sample_rate < 1000:
        raise ShapeError(
            f"sample_rate: needs 1000 or more samples per second, got {sample_rate}; try 16000"
        )
    return round(WINDOW_SECONDS * sample_rate), round(HOP_SECONDS * sample_rate)


def mel_filters(
    n_mels: int, sample_rate: int, n_fft: int, mel_scale: MelScale = "htk"
) -> Float[Tensor, "mel frequency"]:
    """Triangular filters that overlap by half, evenly spaced on the mel scale up to Nyquist.

    filter[m, f] = max(0, min((f - c_{m-1}) / (c_m - c_{m-1}), (c_{m+1} - f) / (c_{m+1} - c_m)))

    htk: mel(f) = 2595 log₁₀(1 + f / 700), each peak is 1. slaney (Whisper): linear up to 1000 Hz
    and logarithmic above, each area is 1.

    >>> mel_filters(1, sample_rate=800, n_fft=8, mel_scale="slaney") * 200
    tensor([[0.0000, 0.5000, 1.0000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    if n_mels < 1:
        raise ShapeError(f"n_mels: needs 1 or more, got {n_mels}")
    top = torch.tensor(sample_rate / 2, dtype=torch.float64)
    steps = torch.arange(n_mels + 2, dtype=torch.float64) / (n_mels + 1)
    edges = _to_hertz(steps * _to_mel(top, mel_scale), mel_scale)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    f = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * sample_rate / n_fft
    filters = torch.minimum((f - low) / (centre - low), (high - f) / (high - centre)).clamp(min=0)
    empty = int((filters.amax(-1) == 0).sum())
    if empty:  # such a feature would be the constant log(floor)
        raise ShapeError(
            f"n_mels: needs filters wide enough for one of the {n_fft // 2 + 1} frequencies, got "
            f"{n_mels}, {empty} of them empty; try fewer n_mels or a larger n_fft"
        )
    return filters * 2 / (high - low) if mel_scale == "slaney" else filters


_cached_filters = cache(mel_filters)

_KNEE, _KNEE_MEL, _STEP = 1000.0, 15.0, math.log(6.4) / 27  # of the slaney scale


def _to_mel(f: Tensor, scale: MelScale) -> Tensor:
    if scale == "htk":
        return 2595 * torch.log10(1 + f / 700)
    log = _KNEE_MEL + torch.log(f.clamp(min=_KNEE) / _KNEE) / _STEP
    return torch.where(f < _KNEE, f * _KNEE_MEL / _KNEE, log)


def _to_hertz(mel: Tensor, scale: MelScale) -> Tensor:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    log = _KNEE * torch.exp((mel - _KNEE_MEL).clamp(min=0) * _STEP)
    return torch.where(mel < _KNEE_MEL, mel * _KNEE / _KNEE_MEL, log)


def online_cmvn(
    x: Float[Tensor, "*batch time mel"],
    initial_state: Float[Tensor, "*batch state"] | None = None,
    *,
    dynamic_range: float = 8.0,
) -> tuple[Float[Tensor, "*batch time mel"], Float[Tensor, "*batch state"]]:
    """Subtract from each log-mel band its running mean; also returns the state for streaming.

    y_t = max(x_t, level_t - dynamic_range) - (sum_t + 20 (level_t - 4)) / (weight_t + 20)
    level_t = max(loud_t, level_{t-1} - 0.01, -12),   loud_t = log Σ_m exp x[t, m]
    sum_t = 0.9934 sum_{t-1} + x_t, weight_t = 0.9934 weight_{t-1} + 1 if loud_t > level_t - 3

    A gain of the whole signal or of one band changes little, which removes microphone and room as
    far as they are known at time t; values more than `dynamic_range` below the level are clipped.
    With the state (level + 12, weight, sums; zeros at first) a stream gives the same result.

    >>> y, state = online_cmvn(torch.tensor([[3.0], [-9.0]]), dynamic_range=8.0)
    >>> y.flatten()  # 3 - (3 + 20 · -1) / 21, and (2.99 - 8) - (3 + 20 · -1.01) / 21
    tensor([ 3.8095, -4.1910])
    >>> state
    tensor([14.9900,  1.0000,  3.0000])
    """
    if not dynamic_range > 0:
        raise ShapeError(f"dynamic_range: needs more than 0, got {dynamic_range}; try 8")
    state = x.new_zeros(*x.shape[:-2], x.shape[-1] + 2) if initial_state is None else initial_state
    parts = []
    for block in x.split(BLOCK_FRAMES, -2):
        if block.shape[-2]:
            y, state = _normalise(block, state, dynamic_range)
            parts.append(y)
    return torch.cat(parts, -2) if parts else x, state


def _normalise(x: Tensor, state: Tensor, dynamic_range: float) -> tuple[Tensor, Tensor]:
    # in float64: splits of a stream must not show, and powers of MEAN_DECAY span three decades
    x64, state = x.double(), state.double()
    decay = LEVEL_DECAY * torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=torch.float64)
    loudness = x64.logsumexp(-1)
    # with the decay added back the level never falls, so one running maximum gives all of it
    highest = (loudness + decay).cummax(-1).values.maximum(state[..., :1] + MIN_LEVEL)
    level = (highest - decay).clamp(min=MIN_LEVEL)[..., None]
    sound = (loudness[..., None] > level - ACTIVE_MARGIN).double()
    remaining = MEAN_DECAY ** sound.cumsum(-2)
    terms = torch.cat([torch.ones_like(level), x64], -1)  # weight and sums in one cumsum
    sums = remaining * (state[..., None, 1:] + (sound / remaining * terms).cumsum(-2))
    mean = (sums[..., 1:] + PRIOR_FRAMES * (level + PRIOR_MEAN)) / (sums[..., :1] + PRIOR_FRAMES)
    y = x64.maximum(level - dynamic_range) - mean
    return y.to(x), torch.cat([level - MIN_LEVEL, sums], -1)[..., -1, :].to(x)
