"""Out-of-distribution audio without speech, to calibrate the confidence of a recogniser."""

import math
from collections.abc import Callable

import numpy as np
import torch

from regard.data.audio.audio_file import AudioExample

Wave = np.ndarray
VOWEL_FORMANTS = ((700, 1200, 2500), (300, 2200, 2900), (350, 800, 2300), (500, 1800, 2500))


def make_ood_audio(count: int, rate: int = 8000) -> list[AudioExample]:
    """Noise, silence, hum, babble without words, chords and whistles, 2 to 5 seconds each."""
    examples = []
    for number in range(count):
        rng = np.random.default_rng((0, number))
        time = np.arange(int(rng.uniform(2, 5) * rate)) / rate
        wave = OOD_AUDIO_KINDS[number % len(OOD_AUDIO_KINDS)](time, rate, rng)
        wave = wave / max(1e-9, np.abs(wave).max()) * 10 ** rng.uniform(-1.5, 0)
        examples.append(AudioExample(torch.from_numpy(wave.astype("float32")), "", rate))
    return examples


def _noise(time: Wave, rate: int, rng: np.random.Generator) -> Wave:
    """White, pink or brown noise."""
    spectrum = np.fft.rfft(rng.standard_normal(len(time)))
    tilt = np.maximum(1, np.arange(len(spectrum))) ** -rng.choice([0.0, 0.5, 1.0])
    return np.fft.irfft(spectrum * tilt, len(time))


def _silence(time: Wave, rate: int, rng: np.random.Generator) -> Wave:
    return np.zeros(len(time))


def _hum(time: Wave, rate: int, rng: np.random.Generator) -> Wave:
    pitch = rng.choice([50, 60]) * (1 + 0.002 * rng.standard_normal())
    tones = sum(rng.uniform(0, 1) * np.sin(2 * math.pi * n * pitch * time) for n in range(1, 12))
    return tones + 0.05 * rng.standard_normal(len(time))


def _babble(time: Wave, rate: int, rng: np.random.Generator) -> Wave:
    """Random syllables: a buzz filtered by changing formants, or noise."""
    wave, at = 0.01 * rng.standard_normal(len(time)), 0
    while at < len(time):
        size = min(len(time) - at, int(rng.uniform(0.08, 0.3) * rate))
        t = np.arange(size) / rate
        pitch = rng.uniform(80, 250) * (1 + rng.uniform(-0.3, 0.3) * t)
        vowel = np.array(VOWEL_FORMANTS[rng.integers(len(VOWEL_FORMANTS))])
        formants = vowel * rng.uniform(0.85, 1.2)
        partials = np.arange(1, int(rate / 2 / pitch.max()))
        distance = (partials[:, None] * pitch.mean() - formants) / (80 + 0.06 * formants)
        loud = (1 / (1 + distance**2)).sum(1) / partials**0.5
        buzz = (loud[:, None] * np.sin(2 * math.pi * partials[:, None] * pitch * t)).sum(0)
        noise = rng.standard_normal(size)
        wave[at : at + size] += np.hanning(size) * (buzz if rng.random() < 0.8 else 0.5 * noise)
        at += size + int(rng.uniform(0, 0.15) * rate)
    return wave


def _chords(time: Wave, rate: int, rng: np.random.Generator) -> Wave:
    """Repeated chords of one to four notes."""
    wave, at = np.zeros(len(time)), 0
    while at < len(time):
        t = np.arange(len(time) - at) / rate
        notes = 220 * 2 ** (rng.integers(0, 24, rng.integers(1, 5)) / 12)
        chord = sum(np.sin(2 * math.pi * f * n * t) / n for f in notes for n in (1, 2, 3))
        wave[at:] += chord * np.exp(-t / rng.uniform(0.1, 0.8)) * np.minimum(1, t / 0.01)
        at += int(rng.uniform(0.15, 0.7) * rate)
    return wave


def _whistle(time: Wave, rate: int, rng: np.random.Generator) -> Wave:
    """A tone that glides up and down, like a bird or a siren."""
    drift = np.sin(2 * math.pi * rng.uniform(0.2, 4) * time + rng.uniform(0, 6))
    pitch = rng.uniform(400, 1500) * 2 ** (rng.uniform(0.2, 1) * drift)
    envelope = np.clip(0.5 + np.sin(2 * math.pi * rng.uniform(0.3, 3) * time), 0, 1)
    return envelope * np.sin(2 * math.pi * np.cumsum(pitch) / rate)


OOD_AUDIO_KINDS: tuple[Callable[[Wave, int, np.random.Generator], Wave], ...] = (
    _noise, _babble, _chords, _hum, _whistle, _silence,
)  # fmt: skip
