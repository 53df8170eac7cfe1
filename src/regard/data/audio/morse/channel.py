"""Renders key presses as a radio receiver plays them: tone, fading, noise, interference, AGC.

A batch is rendered at once, on the device of the random generator.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.audio.morse.keying import Channel, Keying

CHIRP_SECONDS = 0.03  # time constant of the pitch after a press
AGC_BLOCK_SECONDS = 0.005  # resolution of the gain control
MAX_AGC_GAIN = 30.0
MAX_AGC_OUTPUT = 1.5  # limit of the output stage, for a tone of amplitude 1
NOISE_FILTER_TAPS = 129  # of the band-pass filter of the noise


def render_keyings(
    plans: Sequence[Keying], rate: int, generator: torch.Generator
) -> tuple[Float[Tensor, "batch sample"], Int[Tensor, " batch"]]:
    """Waveforms of keyings, zero-padded, and their lengths in samples."""
    device = generator.device
    lengths = torch.tensor([max(1, round(plan.seconds * rate)) for plan in plans])
    edges = [torch.tensor([p.lead_silence + edge for edge in p.edges]) * rate for p in plans]
    parameters = torch.tensor([plan.channel for plan in plans], dtype=torch.float64)
    # in double precision; the power of a sine of amplitude 1 is 0.5
    stds = [math.sqrt(0.5 / 10 ** (plan.channel.snr / 10)) for plan in plans]
    ch = Channel(*parameters.to(device, torch.float32).T[:, :, None])  # type: ignore[arg-type]
    place = torch.arange(int(lengths.max()), device=device, dtype=torch.float32)
    padded = torch.nn.utils.rnn.pad_sequence(edges, True, 1e9).to(device)
    key, since = _keyed(padded, place, rate, ch)
    time = place / rate
    chirp = ch.chirp * CHIRP_SECONDS * (1 - torch.exp(-since / CHIRP_SECONDS))
    fade = 0.5 + 0.5 * torch.sin(2 * math.pi * ch.fade_rate * time + ch.fade_phase)
    wave = key * _sine((ch.pitch + ch.drift * time / 2) * time + chirp) * (1 - ch.fade_depth * fade)
    wave = wave + _interference(key, time, ch)
    wave = wave + _noise(wave, torch.tensor(stds, device=device)[:, None], ch, rate, generator)
    valid = place < lengths.to(device)[:, None]
    wave = _peak_1(_gain_control(wave, ch, rate) * valid)
    wave = _limited(wave, ch) + ch.dc_offset
    return _peak_1(wave * valid) * 10 ** (ch.gain / 20), lengths


def _sine(cycles: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * (cycles % 1))


def _peak_1(wave: Tensor) -> Tensor:
    return wave / wave.abs().amax(1, keepdim=True).clamp(min=1e-9)


def _keyed(edges: Tensor, place: Tensor, rate: int, ch: Channel) -> tuple[Tensor, Tensor]:
    """Key envelope with raised-cosine edges, and the seconds since the last edge."""
    if not edges.shape[1]:  # no key presses at all
        zeros = place.new_zeros(len(edges), len(place))
        return zeros, zeros
    count = torch.searchsorted(edges, place.expand(len(edges), -1).contiguous(), right=True)
    since = (place - edges.gather(1, (count - 1).clamp(min=0))).clamp(min=0) / rate
    moved = torch.sin(math.pi / 2 * (since / ch.rise_time).clamp(max=1)) ** 2
    key = torch.where(count % 2 == 1, moved, 1 - moved)
    return key.masked_fill(count == 0, 0), since


def _interference(key: Tensor, time: Tensor, ch: Channel) -> Tensor:
    """Mains hum, and a weaker station keyed like a neighbour in the batch."""
    hum = sum(_sine(n * ch.hum_pitch * time) / n for n in (1, 2, 3, 5))
    rhythm = key.roll(1, 0).roll(len(time) // 3, 1)
    other = rhythm * ch.interference_keyed + 1 - ch.interference_keyed
    return ch.hum * hum + ch.interference * (other * _sine(ch.interference_pitch * time))


def _noise(
    wave: Tensor, level: Tensor, ch: Channel, rate: int, generator: torch.Generator
) -> Tensor:
    noise = torch.randn(wave.shape, generator=generator, device=wave.device)
    rows = (ch.noise_bandwidth[:, 0] > 0).nonzero()[:, 0]  # type: ignore[index]
    if len(rows):
        # the density of white noise within the band, none outside
        tap = torch.arange(NOISE_FILTER_TAPS, device=wave.device) - NOISE_FILTER_TAPS // 2
        width = rate / (math.pi * ch.noise_bandwidth[rows].clamp(min=150))  # type: ignore[index]
        bell = torch.exp(-((tap / width) ** 2))
        taps = 2 * bell / bell.sum(1, keepdim=True)
        taps = taps * torch.cos(2 * math.pi * ch.pitch[rows] * tap / rate)  # type: ignore[index]
        narrow = F.conv1d(
            noise[None, rows], taps[:, None], padding=NOISE_FILTER_TAPS // 2, groups=len(rows)
        )
        noise = noise.index_copy(0, rows, narrow[0])
    uniform = torch.rand(wave.shape, generator=generator, device=wave.device)
    crackle = (uniform < ch.impulse_rate / rate) * 6.0 * (level + 0.5)
    return noise * (level + crackle)


def _gain_control(wave: Tensor, ch: Channel, rate: int) -> Tensor:
    """Automatic gain control with immediate attack and slow release: noise rises in pauses.

    The gain lags by one block, so that onsets pop, up to the limit of the output stage.
    """
    size = round(AGC_BLOCK_SECONDS * rate)
    blocks = F.max_pool1d(wave.abs(), size, ceil_mode=True).clamp(min=MAX_AGC_GAIN**-1).log()
    blocks = F.pad(blocks, (1, 0), value=-math.log(MAX_AGC_GAIN))[:, :-1]
    fall = torch.arange(blocks.shape[1], device=wave.device) * AGC_BLOCK_SECONDS / ch.agc_release
    followed = ((blocks + fall).cummax(1).values - fall).clamp(min=-math.log(MAX_AGC_GAIN))
    gain = F.interpolate(torch.exp(-ch.agc * followed)[:, None], wave.shape[1], mode="linear")[:, 0]
    return torch.where(ch.agc > 0, (wave * gain).clamp(-MAX_AGC_OUTPUT, MAX_AGC_OUTPUT), wave)  # type: ignore[operator]


def _limited(wave: Tensor, ch: Channel) -> Tensor:
    driven = wave * ch.drive
    limited = torch.where(ch.soft_clip > 0, driven.tanh(), driven.clamp(-1, 1))  # type: ignore[operator]
    return torch.where(ch.drive > 0, limited, wave)  # type: ignore[operator]
