"""Morse code as sound: sent by any hand at any speed, as radios play it, with exact labels."""

import math
from collections.abc import Iterator, Sequence
from random import Random

from regard.data.audio.example import AudioExample
from regard.data.audio.morse.channel import render_keyings
from regard.data.audio.morse.keying import (
    MORSE_CODE,
    Channel,
    Keying,
    SenderTiming,
    key_edges,
)
from regard.data.generated_batches import seeded_generator
from regard.data.split import Split
from regard.errors import ConfigError


class Morse:
    """Random texts as Morse code, each of its own speed, pitch, fading and noise; endless.

    snr = 10 log₁₀(power of the tone while the key is down / power of the noise)

    With `radio` each has what hands and receivers add too: uneven timing, wide gaps, a drifting
    pitch, key clicks, hum, another station, gain control, a limiter, any level, and silence or
    none before and after. `empty` is the share of such sounds in which nobody sends.

    >>> sound = next(Morse(letters=(3, 5)).examples("train", seed=0))
    >>> 3 <= len(sound.text) <= 5 and len(sound.char_ends) == len(sound.text)
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
        eval_size: int = 500,
        alphabet: str = "".join(MORSE_CODE),
        held_out_wpm: Sequence[tuple[float, float]] = (),
        radio_effects: bool = False,
        empty_fraction: float = 0.0,
    ):
        ranges = {"letters": letters, "wpm": wpm, "pitch": pitch, "snr": snr}
        for name, (low, high) in ranges.items():
            if low > high or (name != "snr" and low <= 0):
                raise ConfigError(f"{name}: needs a lower and an upper limit, got {low} to {high}")
        for name, share in (("fading", fading), ("empty", empty_fraction)):
            if not 0 <= share < 1:
                raise ConfigError(f"{name}: needs to be from 0 to less than 1, got {share}")
        if pitch[1] >= rate / 2:
            raise ConfigError(f"pitch: needs to be below half of rate={rate}, got {pitch[1]}")
        self.letters, self.wpm, self.pitch, self.snr = letters, wpm, pitch, snr
        self.fading, self.rate, self.eval_size, self.alphabet = fading, rate, eval_size, alphabet
        self.radio_effects, self.empty_fraction = radio_effects, empty_fraction
        self.held_out_wpm = tuple(held_out_wpm)  # speeds that are never sent
        if any(low <= wpm[0] and high >= wpm[1] for low, high in self.held_out_wpm):
            raise ConfigError(f"spared: needs to leave some of {wpm[0]} to {wpm[1]} wpm, got all")

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Sounds from the one numbered `start`: for ever for train, the same ones otherwise."""
        number = start
        while split == "train" or number < self.eval_size:
            name = f"train/{seed}/{number}" if split == "train" else f"{split}/{number}"
            yield self._send(name)
            number += 1

    def draw_keying(self, key: str) -> Keying:
        """What is sent under a name, and how."""
        rng = Random(key)
        text, wpm = self._text(rng), self._wpm(rng)
        # until three dots are over nobody who hears it live can know that a letter has ended
        before, after = rng.uniform(0.1, 0.4), max(rng.uniform(0.1, 0.4), 5 * 1.2 / wpm)
        channel = Channel(
            pitch=rng.uniform(*self.pitch),
            snr=rng.uniform(*self.snr),
            fade_rate=rng.uniform(0.1, 0.5),
            fade_phase=rng.uniform(0, 2 * math.pi),
            fade_depth=rng.uniform(0, self.fading),
        )
        hand = SenderTiming()
        if self.radio_effects:
            hand, channel = _hand(rng, 1.2 / wpm), _received(channel, rng)
            before, after = _silence(rng), _silence(rng)
            if rng.random() < self.empty_fraction:
                text, before = "", before + rng.uniform(1.0, 5.0)
        edges, marks = key_edges(text, hand, rng) if text else ([], [])
        dot = 1.2 / wpm
        return Keying(
            text=text,
            wpm=wpm,
            edges=tuple(dot * edge for edge in edges),
            char_ends=tuple(dot * mark for mark in marks),
            lead_silence=before,
            tail_silence=after,
            channel=channel,
        )

    def _wpm(self, rng: Random) -> float:
        while True:
            wpm = math.exp(rng.uniform(*map(math.log, self.wpm)))
            if not any(low <= wpm <= high for low, high in self.held_out_wpm):
                return wpm

    def _send(self, name: str) -> AudioExample:
        plan = self.draw_keying(name)
        waves, _ = render_keyings([plan], self.rate, seeded_generator(name))
        ends = tuple(round((plan.lead_silence + end) * self.rate) for end in plan.char_ends)
        return AudioExample(waves[0], plan.text, self.rate, ends)

    def _text(self, rng: Random) -> str:
        size = rng.randint(*self.letters)
        drawn = [rng.choice(self.alphabet) for _ in range(size)]
        for place in range(1, size - 1):  # words of five letters, about
            if rng.random() < 0.2 and drawn[place - 1] != " ":
                drawn[place] = " "
        return "".join(drawn)


def _hand(rng: Random, dot: float) -> SenderTiming:
    """Some senders are machines; hands are uneven by up to a fifth. Any may pause for seconds."""
    machine = rng.random() < 0.4
    spacing = math.exp(rng.uniform(0, math.log(2.5))) if rng.random() < 0.3 else 1.0
    return SenderTiming(
        jitter=0.0 if machine else rng.uniform(0.02, 0.2),
        dash=3.0 if machine else rng.uniform(2.7, 3.6),
        spacing=spacing if machine else spacing * rng.uniform(0.95, 1.15),
        weight=0.0 if rng.random() < 0.6 else rng.uniform(-0.15, 0.25),
        pause=0.0 if rng.random() < 0.7 else rng.uniform(1.0, 5.0) / dot,
    )


def _received(channel: Channel, rng: Random) -> Channel:
    """Each trouble of a receiver in some of the sounds, several in many."""

    def some(share: float, low: float, high: float, otherwise: float = 0.0) -> float:
        return rng.uniform(low, high) if rng.random() < share else otherwise

    away = rng.choice((-1, 1)) * rng.uniform(170, 700)
    other = channel.pitch + away if channel.pitch + away > 150 else channel.pitch - away
    return channel._replace(
        snr=channel.snr if rng.random() < 0.7 else rng.uniform(20, 80),
        rise_time=math.exp(rng.uniform(math.log(0.0005), math.log(0.012))),
        drift=some(0.2, -8, 8),
        chirp=some(0.15, -40, 40),
        fade_depth=some(0.15, 0, 0.8, channel.fade_depth),
        noise_bandwidth=some(0.35, 200, 1200),
        impulse_rate=some(0.15, 0.2, 4.0),
        hum=some(0.15, 0.02, 0.5),
        hum_pitch=rng.choice((50.0, 60.0)),
        interference=10 ** (some(0.2, -26, -9, -200.0) / 20),
        interference_pitch=other,
        interference_keyed=float(rng.random() < 0.7),
        agc=some(0.35, 0.4, 1.0),
        agc_release=math.exp(rng.uniform(math.log(0.05), math.log(2.0))),
        drive=math.exp(some(0.3, math.log(1.3), math.log(40), -math.inf)),
        soft_clip=float(rng.random() < 0.5),
        dc_offset=some(0.1, -0.3, 0.3),
        gain=rng.uniform(-40, 0),
        below_peak=some(0.3, 0, 25),
    )


def _silence(rng: Random) -> float:
    kind = rng.random()
    return 0.0 if kind < 0.3 else rng.uniform(0, 0.5) if kind < 0.8 else rng.uniform(0.5, 3.0)
