"""Random Morse code recordings with exact labels."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Unpack

import torch

from regard.data.audio.audio_file import AudioExample
from regard.data.audio.peak_normalization import normalize_recordings
from regard.data.audio.speech_batches import AudioBatches, ctc_batch
from regard.data.batches import Batch, Shard, seeded_generator
from regard.data.content.morse.channel import (
    MORSE_CODE,
    Channel,
    Keying,
    SenderTiming,
    key_edges,
    render_keyings,
)
from regard.data.source import example_keys
from regard.data.split import Split
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError


@dataclass(kw_only=True, eq=False)
class Morse:
    """Random texts as Morse code with random speed, pitch, fading and noise; endless.

    snr = 10 log₁₀(power of the tone while the key is down / power of the noise)

    Args:
        letters: shortest and longest text.
        wpm: slowest and fastest speed, in words per minute.
        pitch: lowest and highest tone, in Hz.
        snr: lowest and highest signal-to-noise ratio, in dB.
        fading: largest depth of fading.
        rate: samples per second.
        eval_size: number of recordings of the valid and test splits.
        alphabet: characters to draw from.
        held_out_wpm: ranges of speed that are never sent.
        radio_effects: add uneven timing, wide gaps, drift, key clicks, hum, interference, gain
            control, limiter, any level, and silence or none at both ends.
        empty_fraction: fraction of recordings without a transmission, with `radio_effects`.

    >>> example = next(Morse(letters=(3, 5)).examples("train", seed=0))
    >>> 3 <= len(example.text) <= 5 and len(example.char_ends) == len(example.text)
    True
    """

    letters: tuple[int, int] = (3, 12)
    wpm: tuple[float, float] = (15.0, 30.0)
    pitch: tuple[float, float] = (400.0, 900.0)
    snr: tuple[float, float] = (0.0, 20.0)
    fading: float = 0.5
    rate: int = 8000
    eval_size: int = 500
    alphabet: str = "".join(MORSE_CODE)
    held_out_wpm: Sequence[tuple[float, float]] = ()
    radio_effects: bool = False
    empty_fraction: float = 0.0

    def __post_init__(self) -> None:
        for name in ("letters", "wpm", "pitch", "snr"):
            low, high = getattr(self, name)
            if low > high or (name != "snr" and low <= 0):
                raise ConfigError(f"{name}: needs a lower and an upper limit, got {low} to {high}")
        for name in ("fading", "empty_fraction"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name}: needs to be from 0 to less than 1, got {value}")
        if (pitch := self.pitch[1]) >= self.rate / 2:
            raise ConfigError(f"pitch: needs to be below half of rate={self.rate}, got {pitch}")
        slow, fast = self.wpm
        if any(low <= slow and high >= fast for low, high in self.held_out_wpm):
            raise ConfigError(f"held_out_wpm: needs to leave some of {slow} to {fast} wpm, got all")

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Recordings from number `start`; train is endless, valid and test are fixed."""
        return map(self._render, example_keys(split, seed, start, self.eval_size))

    def draw_keying(self, key: str) -> Keying:
        """Text and random parameters of the recording of a key."""
        rng = Random(key)
        text, wpm = self._text(rng), self._wpm(rng)
        # a live listener needs three dots of silence to know that a letter has ended
        before, after = rng.uniform(0.1, 0.4), max(rng.uniform(0.1, 0.4), 5 * 1.2 / wpm)
        channel = Channel(
            pitch=rng.uniform(*self.pitch),
            snr=rng.uniform(*self.snr),
            fade_rate=rng.uniform(0.1, 0.5),
            fade_phase=rng.uniform(0, 2 * math.pi),
            fade_depth=rng.uniform(0, self.fading),
        )
        timing = SenderTiming()
        if self.radio_effects:
            timing, channel = _draw_timing(rng, 1.2 / wpm), _draw_channel(channel, rng)
            before, after = _silence(rng), _silence(rng)
            if rng.random() < self.empty_fraction:
                text, before = "", before + rng.uniform(1.0, 5.0)
        times = key_edges(text, timing, rng) if text else ([], [])
        edges, ends = (tuple(1.2 / wpm * time for time in row) for row in times)
        return Keying(text, wpm, edges, ends, before, after, channel)

    def _wpm(self, rng: Random) -> float:
        while True:
            wpm = math.exp(rng.uniform(*map(math.log, self.wpm)))
            if not any(low <= wpm <= high for low, high in self.held_out_wpm):
                return wpm

    def _render(self, key: str) -> AudioExample:
        plan = self.draw_keying(key)
        waves, _ = render_keyings([plan], self.rate, seeded_generator(key))
        ends = tuple(round((plan.lead_silence + end) * self.rate) for end in plan.char_ends)
        return AudioExample(waves[0], plan.text, self.rate, ends)

    def _text(self, rng: Random) -> str:
        size = rng.randint(*self.letters)
        drawn = [rng.choice(self.alphabet) for _ in range(size)]
        for place in range(1, size - 1):  # words of about five letters
            if rng.random() < 0.2 and drawn[place - 1] != " ":
                drawn[place] = " "
        return "".join(drawn)


def _draw_timing(rng: Random, dot: float) -> SenderTiming:
    """40% of the senders are machines; manual timing varies by up to a fifth."""
    machine = rng.random() < 0.4
    spacing = math.exp(rng.uniform(0, math.log(2.5))) if rng.random() < 0.3 else 1.0
    return SenderTiming(
        jitter=0.0 if machine else rng.uniform(0.02, 0.2),
        dash=3.0 if machine else rng.uniform(2.7, 3.6),
        spacing=spacing if machine else spacing * rng.uniform(0.95, 1.15),
        weight=0.0 if rng.random() < 0.6 else rng.uniform(-0.15, 0.25),
        pause=0.0 if rng.random() < 0.7 else rng.uniform(1.0, 5.0) / dot,
    )


def _draw_channel(channel: Channel, rng: Random) -> Channel:
    """Each effect with its probability."""

    def maybe(probability: float, low: float, high: float, otherwise: float = 0.0) -> float:
        return rng.uniform(low, high) if rng.random() < probability else otherwise

    away = rng.choice((-1, 1)) * rng.uniform(170, 700)
    other = channel.pitch + away if channel.pitch + away > 150 else channel.pitch - away
    return channel._replace(
        snr=channel.snr if rng.random() < 0.7 else rng.uniform(20, 80),
        rise_time=math.exp(rng.uniform(math.log(0.0005), math.log(0.012))),
        drift=maybe(0.2, -8, 8),
        chirp=maybe(0.15, -40, 40),
        fade_depth=maybe(0.15, 0, 0.8, channel.fade_depth),
        noise_bandwidth=maybe(0.35, 200, 1200),
        impulse_rate=maybe(0.15, 0.2, 4.0),
        hum=maybe(0.15, 0.02, 0.5),
        hum_pitch=rng.choice((50.0, 60.0)),
        interference=10 ** (maybe(0.2, -26, -9, -200.0) / 20),
        interference_pitch=other,
        interference_keyed=float(rng.random() < 0.7),
        agc=maybe(0.35, 0.4, 1.0),
        agc_release=math.exp(rng.uniform(math.log(0.05), math.log(2.0))),
        drive=math.exp(maybe(0.3, math.log(1.3), math.log(40), -math.inf)),
        soft_clip=float(rng.random() < 0.5),
        dc_offset=maybe(0.1, -0.3, 0.3),
        gain=rng.uniform(-40, 0),
        below_peak=maybe(0.3, 0, 25),
    )


def _silence(rng: Random) -> float:
    kind = rng.random()
    return 0.0 if kind < 0.3 else rng.uniform(0, 0.5) if kind < 0.8 else rng.uniform(0.5, 3.0)


def morse_batches(
    source: Morse,
    tokenizer: Tokenizer,
    *,
    mels: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    **shard: Unpack[Shard],
) -> AudioBatches:
    """Training batches of Morse code: tone, noise and log-mel of a batch, computed on a device.

    Waves are normalised, padded and dithered as for inference (`normalize_recording`).

    Args:
        source: speeds, pitches and channel effects.
        tokenizer: of the labels.
        mels: log-mel bands.
        batch_size: recordings per batch.
        device: where to compute.
        seed: of texts and noise.
        shard: `rank` and `world_size` of the process.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> source = Morse(letters=(1, 1), alphabet="ET")
    >>> batch = next(iter(morse_batches(source, tokenizer, mels=8, batch_size=2)))
    >>> batch["frames"].shape[2], batch["target"].shape
    (8, torch.Size([2, 1]))
    """

    def render(plans: Sequence[Keying], number: int) -> Batch:
        generator = seeded_generator(seed, "noise", number, device=device)
        waves, lengths = render_keyings(plans, source.rate, generator)
        below_peak = torch.tensor([plan.channel.below_peak for plan in plans], device=device)
        waves, lengths = normalize_recordings(
            waves, lengths, source.rate, generator, gain=10 ** (-below_peak / 20)
        )
        return ctc_batch(waves, lengths, [p.text for p in plans], tokenizer, source.rate, mels)

    return AudioBatches(
        lambda number: source.draw_keying(f"train/{seed}/{number}"), lambda plan: plan.seconds,
        render, batch_size=batch_size, seed=seed, **shard,
    )  # fmt: skip
