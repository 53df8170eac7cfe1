"""Morse code as sound: keyed at any speed, with fading and noise, and with exact labels."""

import math
import zlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.facts import Split
from regard.errors import ConfigError

CODES = {
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
RISE = 0.005  # seconds in which a tone comes and goes: without, it clicks


class Sound(NamedTuple):
    """A wave from -1 to 1, what is said in it, and where each character of that has ended.

    >>> Sound(torch.zeros(8000), "", 8000).rate
    8000
    """

    wave: Float[Tensor, " sample"]
    text: str
    rate: int
    ends: tuple[int, ...] = ()  # samples; empty where nobody knows


def key(text: str, wpm: float = 20.0, rate: int = 8000) -> tuple[np.ndarray, tuple[int, ...]]:
    """When the key is down, 1 or 0 a sample, and where each character has ended.

    dot = 1.2 s / wpm, dash = 3 dots, gap = 1 dot inside a letter, 3 between, 7 between words

    >>> down, ends = key("ET", wpm=12, rate=10)
    >>> down.astype(int).tolist(), ends
    ([1, 0, 0, 0, 1, 1, 1], (1, 7))
    """
    edges, marks = presses(text)
    if not 0 < wpm <= 1.2 * rate:
        raise ConfigError(f"wpm: needs to be from 0 to {1.2 * rate:g}, got {wpm}")
    dot = 1.2 / wpm * rate
    times = np.rint(np.array(edges) * dot).astype(int)  # from the start: no error adds up
    down = np.zeros(times[-1], dtype=bool)
    for first, last in zip(times[::2], times[1::2], strict=True):
        down[first:last] = True
    return down, tuple(round(mark * dot) for mark in marks)


def presses(text: str) -> tuple[list[int], list[int]]:
    """When the key goes down and up, in turn, and when each character has ended; in dots.

    >>> presses("ET")
    ([0, 1, 4, 7], [1, 7])
    """
    if unknown := sorted(set(text) - set(CODES) - {" "}):
        raise ConfigError(f"text: needs capitals, digits and {' '.join('.,?/=')}, got {unknown}")
    if not text or text != " ".join(text.split()):
        raise ConfigError(f"text: needs words with one space between, got {text!r}")
    edges: list[int] = []
    marks: list[int] = []
    now = 0  # when the next sign begins
    for character in text:
        if character == " ":
            now += 4  # seven dots, three of which are over
            marks.append(now)
            continue
        for sign in CODES[character]:
            edges += [now, now + (3 if sign == "-" else 1)]
            now = edges[-1] + 1
        marks.append(edges[-1])
        now = edges[-1] + 3
    return edges, marks


class Keying(NamedTuple):
    """All that is drawn about one sound of Morse code but its noise; times are in seconds.

    >>> Keying("E", 20.0, 0.1, 0.4, 600.0, 0.2, 0.0, 0.0, 10.0).seconds
    0.56
    """

    text: str
    wpm: float
    before: float  # silence
    after: float
    pitch: float
    slow: float  # how often it fades, a second
    phase: float
    depth: float  # of the fading
    snr: float

    @property
    def seconds(self) -> float:
        """How long it sounds, with the silence around."""
        return self.before + presses(self.text)[0][-1] * 1.2 / self.wpm + self.after


class Morse:
    """Random texts as Morse code, each of its own speed, pitch, fading and noise; endless.

    snr = 10 log₁₀(power of the tone while the key is down / power of the noise)

    >>> sound = next(Morse(letters=(3, 5)).examples("train", seed=0))
    >>> 3 <= len(sound.text) <= 5 and len(sound.ends) == len(sound.text)
    True
    """

    def __init__(
        self,
        *,
        letters: tuple[int, int] = (3, 12),
        wpm: tuple[float, float] = (15.0, 30.0),
        pitch: tuple[float, float] = (400.0, 900.0),
        snr: tuple[float, float] = (0.0, 20.0),
        fading: float = 0.5,
        rate: int = 8000,
        count: int = 500,
        alphabet: str = "".join(CODES),
        spared: Sequence[tuple[float, float]] = (),
    ):
        ranges = {"letters": letters, "wpm": wpm, "pitch": pitch, "snr": snr}
        for name, (low, high) in ranges.items():
            if low > high or (name != "snr" and low <= 0):
                raise ConfigError(f"{name}: needs a lower and an upper limit, got {low} to {high}")
        if not 0 <= fading < 1:
            raise ConfigError(f"fading: needs to be from 0 to less than 1, got {fading}")
        if pitch[1] >= rate / 2:
            raise ConfigError(f"pitch: needs to be below half of rate={rate}, got {pitch[1]}")
        self.letters, self.wpm, self.pitch, self.snr = letters, wpm, pitch, snr
        self.fading, self.rate, self.count, self.alphabet = fading, rate, count, alphabet
        self.spared = tuple(spared)  # speeds that are never sent
        if any(low <= wpm[0] and high >= wpm[1] for low, high in self.spared):
            raise ConfigError(f"spared: needs to leave some of {wpm[0]} to {wpm[1]} wpm, got all")

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[Sound]:
        """Sounds from the one numbered `start`: for ever for train, the same ones otherwise."""
        number = start
        while split == "train" or number < self.count:
            name = f"train/{seed}/{number}" if split == "train" else f"{split}/{number}"
            yield self._send(name)
            number += 1

    def keying(self, name: str) -> Keying:
        """What is sent under a name, and how."""
        chance = Random(name)
        text, wpm = self._text(chance), self._wpm(chance)
        before, after = chance.uniform(0.1, 0.4), chance.uniform(0.1, 0.4)
        return Keying(
            text=text,
            wpm=wpm,
            before=before,
            # until three dots are over nobody who hears it live can know that a letter has ended
            after=max(after, 5 * 1.2 / wpm),
            pitch=chance.uniform(*self.pitch),
            slow=chance.uniform(0.1, 0.5),
            phase=chance.uniform(0, 2 * math.pi),
            depth=chance.uniform(0, self.fading),
            snr=chance.uniform(*self.snr),
        )

    def _wpm(self, chance: Random) -> float:
        while True:
            wpm = chance.uniform(*self.wpm)
            if not any(low <= wpm <= high for low, high in self.spared):
                return wpm

    def _send(self, name: str) -> Sound:
        sent = self.keying(name)
        down, ends = key(sent.text, sent.wpm, self.rate)
        before, after = int(sent.before * self.rate), int(sent.after * self.rate)
        wave = tone(np.pad(down, (before, after)), sent.pitch, self.rate)
        time = np.arange(len(wave)) / self.rate
        swell = 0.5 + 0.5 * np.sin(2 * math.pi * sent.slow * time + sent.phase)
        wave *= 1 - sent.depth * swell
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(len(wave))
        wave += noise * noise_level(sent.snr)
        wave /= np.abs(wave).max()  # a recording is never louder than 1
        sound = torch.from_numpy(wave.astype("float32"))
        return Sound(sound, sent.text, self.rate, tuple(end + before for end in ends))

    def _text(self, chance: Random) -> str:
        size = chance.randint(*self.letters)
        drawn = [chance.choice(self.alphabet) for _ in range(size)]
        for place in range(1, size - 1):  # words of five letters, about
            if chance.random() < 0.2 and drawn[place - 1] != " ":
                drawn[place] = " "
        return "".join(drawn)


def tone(down: np.ndarray, pitch: float, rate: int) -> np.ndarray:
    """A sine while the key is down, with soft edges.

    >>> tone(np.ones(4, dtype=bool), pitch=2, rate=8).round(3).tolist()
    [0.0, 1.0, 0.0, -1.0]
    """
    width = max(1, int(RISE * rate))
    window = np.hanning(width + 2)[1:-1]
    soft = np.convolve(
        np.pad(down.astype(float), width, mode="edge"), window / window.sum(), "same"
    )
    soft = soft[width:-width]
    return soft * np.sin(2 * math.pi * pitch * np.arange(len(down)) / rate)


def noise_level(snr: float) -> float:
    """The spread of noise that stands so many decibels below a sine of amplitude 1.

    >>> noise_level(0.0) ** 2  # the power of that sine
    0.5000000000000001
    """
    return math.sqrt(0.5 / 10 ** (snr / 10))
