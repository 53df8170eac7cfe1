"""Morse code as key presses, and as a radio receiver plays them: tone, fading, noise, AGC."""

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ConfigError

MORSE_CODE = {
    letter: code
    for letters, codes in (
        ("ABCDEFGHI", (".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..")),
        ("JKLMNOPQR", (".---", "-.-", ".-..", "--", "-.", "---", ".--.", "--.-", ".-.")),
        ("STUVWXYZ", ("...", "-", "..-", "...-", ".--", "-..-", "-.--", "--..")),
        ("01234", ("-----", ".----", "..---", "...--", "....-")),
        ("56789", (".....", "-....", "--...", "---..", "----.")),
        (".,?/=", (".-.-.-", "--..--", "..--..", "-..-.", "-...-")),
    )
    for letter, code in zip(letters, codes, strict=True)
}
RISE_SECONDS = 0.005  # rise and fall time of a tone, against clicks


class SenderTiming(NamedTuple):
    """Deviation of a sender from standard timing, in units of a dot."""

    jitter: float = 0.0  # standard deviation of every press and gap, relative to its length
    dash: float = 3.0
    spacing: float = 1.0  # factor of the gaps between letters and words (Farnsworth timing)
    weight: float = 0.0  # added to every press, taken from the gap after it
    pause: float = 0.0  # largest extra gap between words, in half of the cases


class Channel(NamedTuple):
    """Effects of transmitter, radio channel and receiver; the default is a clean tone."""

    pitch: float = 600.0
    snr: float = math.inf  # dB, tone over noise
    rise_time: float = RISE_SECONDS  # seconds
    drift: float = 0.0  # of the pitch, Hz per second
    chirp: float = 0.0  # Hz at the start of every press
    fade_rate: float = 0.2  # Hz
    fade_phase: float = 0.0
    fade_depth: float = 0.0
    noise_bandwidth: float = 0.0  # Hz, half the width of the band around the pitch; 0 is white
    impulse_rate: float = 0.0  # impulses per second
    hum: float = 0.0  # amplitude, for a tone of amplitude 1
    hum_pitch: float = 50.0
    interference: float = 0.0  # amplitude of another station
    interference_pitch: float = 900.0
    interference_keyed: float = 0.0  # 1: keyed, 0: a steady carrier
    agc: float = 0.0  # 1: constant output level
    agc_release: float = 0.3  # seconds
    drive: float = 0.0  # gain into the limiter, relative to the peak
    soft_clip: float = 0.0  # 1: saturates (tanh), 0: clips
    dc_offset: float = 0.0  # for a peak of 1
    gain: float = 0.0  # dB, peak of the recording
    below_peak: float = 0.0  # dB of the tone below the peak after normalisation


class Keying(NamedTuple):
    """All random parameters of one recording but its noise; times are in seconds."""

    text: str
    wpm: float
    edges: tuple[float, ...]  # key down and key up, alternating
    char_ends: tuple[float, ...]  # end of each character
    lead_silence: float
    tail_silence: float
    channel: Channel = Channel()

    @property
    def seconds(self) -> float:
        """Duration, silence included."""
        return self.lead_silence + (self.edges[-1] if self.edges else 0.0) + self.tail_silence


def key_text(text: str, wpm: float = 20.0, rate: int = 8000) -> tuple[np.ndarray, tuple[int, ...]]:
    """Whether the key is down, per sample, and the end of each character in samples.

    dot = 1.2 s / wpm, dash = 3 dots, gap = 1 dot in a letter, 3 between letters, 7 between words

    >>> down, ends = key_text("ET", wpm=12, rate=10)
    >>> down.astype(int).tolist(), ends
    ([1, 0, 0, 0, 1, 1, 1], (1, 7))
    """
    edges, marks = key_edges(text)
    if not 0 < wpm <= 1.2 * rate:
        raise ConfigError(f"wpm: needs to be from 0 to {1.2 * rate:g}, got {wpm}")
    dot = 1.2 / wpm * rate
    # rounded from the start: errors do not accumulate
    times = np.rint(np.array(edges) * dot).astype(int)
    down = np.zeros(times[-1], dtype=bool)
    for first, last in zip(times[::2], times[1::2], strict=True):
        down[first:last] = True
    return down, tuple(round(mark * dot) for mark in marks)


def key_edges(
    text: str, timing: SenderTiming | None = None, rng: Random | None = None
) -> tuple[list[float], list[float]]:
    """Alternating key-down and key-up times, and the end of each character, in dots."""
    if unknown := sorted(set(text) - set(MORSE_CODE) - {" "}):
        raise ConfigError(f"text: needs capitals, digits and {' '.join('.,?/=')}, got {unknown}")
    if not text or text != " ".join(text.split()):
        raise ConfigError(f"text: needs words with one space between, got {text!r}")
    timing, rng = timing or SenderTiming(), rng or Random(0)

    def jitter(x: float) -> float:
        # clipped at two standard deviations: a longer dot would be a dash
        std = timing.jitter
        return x * (1 + std * min(2.0, max(-2.0, rng.gauss(0, 1)))) if std else x

    edges: list[float] = []
    marks: list[float] = []
    now, gap = 0.0, 0.0  # end of the last press, and the silence after it
    for character in text:
        if character == " ":
            gap = 7 * timing.spacing
            if timing.pause and rng.random() < 0.5:
                gap += rng.uniform(0, timing.pause)
            marks.append(now + gap)
            continue
        for symbol in MORSE_CODE[character]:
            now += jitter(gap - timing.weight) if edges else 0.0
            edges.append(now)
            now += jitter((timing.dash if symbol == "-" else 1.0) + timing.weight)
            edges.append(now)
            gap = 1.0
        marks.append(now)
        gap = 3 * timing.spacing
    return edges, marks


def keyed_tone(key_down: np.ndarray, pitch: float, rate: int) -> np.ndarray:
    """A sine while the key is down, with smooth edges.

    >>> keyed_tone(np.ones(4, dtype=bool), pitch=2, rate=8).round(3).tolist()
    [0.0, 1.0, 0.0, -1.0]
    """
    width = max(1, int(RISE_SECONDS * rate))
    window = np.hanning(width + 2)[1:-1]
    padded = np.pad(key_down.astype(float), width, mode="edge")
    envelope = np.convolve(padded, window / window.sum(), "same")
    return envelope[width:-width] * np.sin(2 * math.pi * pitch * np.arange(len(key_down)) / rate)


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
    driven = wave * ch.drive
    limited = torch.where(ch.soft_clip > 0, driven.tanh(), driven.clamp(-1, 1))  # type: ignore[operator]
    wave = torch.where(ch.drive > 0, limited, wave) + ch.dc_offset  # type: ignore[operator]
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
