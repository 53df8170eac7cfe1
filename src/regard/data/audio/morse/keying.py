"""Morse code as key presses: code table, timing of the sender, and channel parameters."""

import math
from random import Random
from typing import NamedTuple

import numpy as np

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
