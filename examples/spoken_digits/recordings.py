"""Digit strings joined from single recordings of one speaker, with gaps and noise."""

import math
import re
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.audio.audio_file import AudioExample
from regard.data.batches import seeded_generator
from regard.data.split import Split
from regard.errors import ConfigError, FileError

RECORDING_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")
VALID_TAKES = 5  # the first recordings of each digit and speaker are the valid split


class Recording(NamedTuple):
    """One spoken digit: its position in the array of all samples.

    >>> Recording(7, "lucas", 3, 0, 4000).digit
    7
    """

    digit: int
    speaker: str
    number: int
    start: int
    length: int


class WavePlan(NamedTuple):
    """All random parameters of a digit string but its noise.

    `speeds` are per recording; pitch and formants change with them.

    >>> four, two = Recording(4, "a", 0, 0, 80), Recording(2, "a", 0, 80, 80)
    >>> WavePlan("42", (four, two), (8, 8, 8), (1.0, 1.0), 1.0, 20.0).samples
    182
    """

    text: str
    recordings: tuple[Recording, ...]
    gaps: tuple[int, ...]  # samples before each recording and after the last
    speeds: tuple[float, ...]
    gain: float
    snr: float

    @property
    def samples(self) -> int:
        """Length in samples."""
        return sum(self.gaps) + sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Length of each recording at its speed."""
        pairs = zip(self.recordings, self.speeds, strict=True)
        return [int((recording.length - 1) / speed) for recording, speed in pairs]


class SpokenDigits:
    """Digit strings from a folder of files `digit_speaker_number.wav`, as of FSDD.

    The test split has the held-out speakers, valid the first recordings of the others, train the
    rest, with random speed, level and noise.

    Args:
        folder: of the recordings.
        held_out_speakers: speakers of the test split.
        digits: shortest and longest string.
        gap: shortest and longest silence between digits, in seconds.
        speed: lowest and highest speed of training.
        snr: lowest and highest signal-to-noise ratio of training, in dB.
        eval_size: number of strings of the valid and test splits.

    >>> SpokenDigits("nowhere", held_out_speakers=("theo",))
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs files such as 7_lucas_3.wav, got none
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        held_out_speakers: Sequence[str] = (),
        digits: tuple[int, int] = (1, 8),
        gap: tuple[float, float] = (0.03, 0.4),
        speed: tuple[float, float] = (0.8, 1.25),
        snr: tuple[float, float] = (5.0, 45.0),
        eval_size: int = 300,
    ):
        for name, (low, high) in (("digits", digits), ("gap", gap), ("speed", speed), ("snr", snr)):
            if low > high or (name in ("digits", "speed") and low <= 0):
                raise ConfigError(f"{name}: needs a lower and an upper limit, got {low} to {high}")
        self.digits, self.gap, self.speed, self.snr = digits, gap, speed, snr
        self.eval_size = eval_size
        self.samples, recordings, self.rate = _read_all(Path(folder))
        speakers = sorted({recording.speaker for recording in recordings})
        if unknown := sorted(set(held_out_speakers) - set(speakers)):
            raise ConfigError(
                f"held_out_speakers: needs some of {', '.join(speakers)}, got {unknown[0]}"
            )
        if len(set(held_out_speakers)) == len(speakers):
            raise ConfigError(
                f"held_out_speakers: needs to leave one of {', '.join(speakers)}, got all"
            )
        self.recordings: dict[str, dict[str, dict[int, list[Recording]]]] = {}
        for recording in recordings:
            split = "valid" if recording.number < VALID_TAKES else "train"
            split = "test" if recording.speaker in held_out_speakers else split
            by_digit = self.recordings.setdefault(split, {}).setdefault(recording.speaker, {})
            by_digit.setdefault(recording.digit, []).append(recording)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Strings from number `start`; train is endless, valid and test are fixed."""
        number = start
        while split == "train" or number < self.eval_size:
            key = f"train/{seed}/{number}" if split == "train" else f"{split}/{number}"
            plan = self.draw_plan(key, split)
            samples = torch.from_numpy(self.samples)
            waves, _ = render_waves([plan], samples, seeded_generator(key))
            yield AudioExample(waves[0], plan.text, self.rate)
            number += 1

    def draw_plan(self, key: str, split: Split) -> WavePlan:
        """The string of a key; only training has random speed and level."""
        rng = Random(key)
        if split not in self.recordings:
            raise ConfigError(
                f"split: needs one that has recordings, got {split}; try held_out_speakers"
            )
        speakers = self.recordings[split]
        by_digit = speakers[rng.choice(sorted(speakers))]
        size = rng.randint(*self.digits)
        chosen = tuple(rng.choice(by_digit[rng.choice(sorted(by_digit))]) for _ in range(size))
        gaps = [rng.uniform(*self.gap) for _ in range(size)] + [rng.uniform(0.1, 0.5)]
        if split == "train":
            voice = math.exp(rng.uniform(math.log(self.speed[0]), math.log(self.speed[1])))
            speeds = tuple(voice * rng.uniform(0.93, 1.07) for _ in range(size))
            snr = math.inf if rng.random() < 0.1 else rng.uniform(*self.snr)
            gain = 10 ** rng.uniform(-1.5, 0.3)
        else:
            speeds, gain, snr = (1.0,) * size, 1.0, rng.uniform(20.0, 40.0)
        return WavePlan(
            text="".join(str(recording.digit) for recording in chosen), recordings=chosen,
            gaps=tuple(round(gap * self.rate) for gap in gaps), speeds=speeds, gain=gain, snr=snr,
        )  # fmt: skip


def _read_all(folder: Path) -> tuple[np.ndarray, list[Recording], int]:
    recordings, parts, first, rates = [], [], 0, set()
    for file in sorted(folder.rglob("*.wav")) if folder.is_dir() else ():
        match = RECORDING_NAME.fullmatch(file.name)
        if match is None:
            continue
        try:
            with wave.open(str(file)) as opened:
                if opened.getnchannels() != 1 or opened.getsampwidth() != 2:
                    raise FileError(f"{file}: needs one channel of 16 bits, got another format")
                rates.add(opened.getframerate())
                samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
        except (wave.Error, EOFError, OSError) as error:
            raise FileError(f"{file}: needs to be a WAV file, got {error}") from error
        if len(samples) < 2:
            raise FileError(f"{file}: needs 2 samples or more, got {len(samples)}")
        recordings.append(Recording(int(match[1]), match[2], int(match[3]), first, len(samples)))
        parts.append(samples)
        first += len(samples)
    if not recordings:
        raise FileError(f"{folder}: needs files such as 7_lucas_3.wav, got none")
    if len(rates) > 1:
        raise FileError(f"{folder}: needs one sample rate, got {sorted(rates)}")
    return np.concatenate(parts).astype("float32") / 32768, recordings, rates.pop()


def render_waves(
    plans: Sequence[WavePlan], samples: Float[Tensor, " sample"], generator: torch.Generator
) -> tuple[Float[Tensor, "batch time"], Int[Tensor, " batch"]]:
    """Waveforms of plans, zero-padded, and their lengths in samples.

    x(t) = gain · (recording(speed · (t - start)) + noise), interpolated linearly

    >>> plan = WavePlan("1", (Recording(1, "a", 0, 0, 3),), (1, 1), (1.0,), 1.0, float("inf"))
    >>> render_waves([plan], torch.tensor([0.25, 0.5, 0.75]), rg.data.seeded_generator(0))[0]
    tensor([[0.0000, 0.2500, 0.5000, 0.0000]])
    """
    device, longest = samples.device, max(len(plan.recordings) for plan in plans)
    rows = np.zeros((4, len(plans), longest))
    rows[0] = 1 << 40  # missing recordings never start
    for row, plan in enumerate(plans):
        at = 0
        for n, (recording, size) in enumerate(zip(plan.recordings, plan.lengths, strict=True)):
            at += plan.gaps[n]
            rows[:, row, n] = at, at + size, recording.start, plan.speeds[n]
            at += size
    lengths = torch.tensor([plan.samples for plan in plans])
    begins, ends, firsts, speeds = torch.from_numpy(rows).to(device)
    place = torch.arange(int(lengths.max()), device=device)
    which = torch.searchsorted(begins, place.expand(len(plans), -1).double(), right=True) - 1
    inside, which = which >= 0, which.clamp(min=0)
    inside = inside & (place < ends.gather(1, which))
    # double: positions exceed the precision of float32
    exact = (place - begins.gather(1, which)) * speeds.gather(1, which)
    whole = exact.floor()
    at = (whole + firsts.gather(1, which)).long().masked_fill(~inside, 0)
    weight = (exact - whole).float()
    waves = samples[at] * (1 - weight) + samples[(at + 1).clamp(max=len(samples) - 1)] * weight
    waves = waves.masked_fill(~inside, 0)
    power = waves.square().sum(1, keepdim=True) / inside.sum(1, keepdim=True).clamp(min=1)
    ratio = torch.tensor([[10 ** (-plan.snr / 20), plan.gain] for plan in plans]).to(device)
    noise = (
        torch.randn(waves.shape, generator=generator, device=device) * power.sqrt() * ratio[:, :1]
    )
    waves = (waves + noise) * ratio[:, 1:]
    return waves.masked_fill(place >= lengths.to(device)[:, None], 0), lengths
