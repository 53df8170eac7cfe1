"""Strings of spoken digits: takes of one speaker, joined with gaps, changed and noised."""

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

from regard.data.audio.example import AudioExample
from regard.data.batches import collate
from regard.data.generated_batches import Batch, seeded_generator
from regard.data.split import Split
from regard.errors import ConfigError, FileError

RECORDING_NAME = re.compile(r"(\d)_([^_]+)_(\d+)\.wav")
VALID_TAKES = 5  # the first takes of each digit and speaker are not trained on
# the phones of each digit, a letter each (T of three, A of eight, O of four, Y of five, V of one)
DIGIT_PHONES = ("zIro", "wVn", "tu", "Tri", "fOr", "fYv", "sIks", "sevn", "At", "nYn")
PHONES = "".join(sorted(set("".join(DIGIT_PHONES))))


class Recording(NamedTuple):
    """One digit as somebody said it once: where it is in the long row of all samples.

    >>> Recording(7, "lucas", 3, 0, 4000).digit
    7
    """

    digit: int
    speaker: str
    number: int
    start: int
    length: int


class WavePlan(NamedTuple):
    """All that is drawn about one string of digits but its noise.

    `speeds` are for each take; pitch and formants move with them.

    >>> WavePlan("42", (Recording(4, "a", 0, 0, 80), Recording(2, "a", 0, 80, 80)), (8, 8, 8), (1.0, 1.0), 1.0,
    ...        20.0).samples
    182
    """

    text: str
    recordings: tuple[Recording, ...]
    gaps: tuple[int, ...]  # samples before each take and after the last
    speeds: tuple[float, ...]
    gain: float
    snr: float

    @property
    def samples(self) -> int:
        """How long it is."""
        return sum(self.gaps) + sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """How long each take is at its speed."""
        pairs = zip(self.recordings, self.speeds, strict=True)
        return [int((take.length - 1) / speed) for take, speed in pairs]


class SpokenDigits:
    """Strings of digits from a folder of takes named `digit_speaker_number.wav`, as of FSDD.

    Test strings are of the held speakers, valid ones of the first takes of the others; training
    has the rest, each string faster or slower, louder or softer, in noise.

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
        self.digits, self.gap, self.speed, self.snr, self.eval_size = (
            digits,
            gap,
            speed,
            snr,
            eval_size,
        )
        self.samples, takes, self.rate = _read_all(Path(folder))
        speakers = sorted({take.speaker for take in takes})
        if unknown := sorted(set(held_out_speakers) - set(speakers)):
            raise ConfigError(f"held: needs some of {', '.join(speakers)}, got {unknown[0]}")
        if len(set(held_out_speakers)) == len(speakers):
            raise ConfigError(f"held: needs to leave a speaker of {', '.join(speakers)}, got all")
        self.recordings: dict[str, dict[str, dict[int, list[Recording]]]] = {}
        for take in takes:
            split = (
                "test"
                if take.speaker in held_out_speakers
                else "valid"
                if take.number < VALID_TAKES
                else "train"
            )
            spoken = self.recordings.setdefault(split, {}).setdefault(take.speaker, {})
            spoken.setdefault(take.digit, []).append(take)

    def examples(self, split: Split, seed: int, start: int = 0) -> Iterator[AudioExample]:
        """Strings from the one numbered `start`: for ever for train, the same ones otherwise."""
        number = start
        while split == "train" or number < self.eval_size:
            name = f"train/{seed}/{number}" if split == "train" else f"{split}/{number}"
            plan = self.draw_plan(name, split)
            chance = seeded_generator(name)
            waves, _ = render_waves([plan], torch.from_numpy(self.samples), chance)
            yield AudioExample(waves[0], plan.text, self.rate)
            number += 1

    def draw_plan(self, key: str, split: Split) -> WavePlan:
        """What is said under a name, and how; only training is changed in speed."""
        chance = Random(key)
        if split not in self.recordings:
            raise ConfigError(f"split: needs one that has takes, got {split}; try held=…")
        speakers = self.recordings[split]
        spoken = speakers[chance.choice(sorted(speakers))]
        size = chance.randint(*self.digits)
        takes = tuple(chance.choice(spoken[chance.choice(sorted(spoken))]) for _ in range(size))
        gaps = [chance.uniform(*self.gap) for _ in range(size)] + [chance.uniform(0.1, 0.5)]
        if split == "train":
            # one voice, spoken now faster, now slower
            voice = math.exp(chance.uniform(math.log(self.speed[0]), math.log(self.speed[1])))
            speeds = tuple(voice * chance.uniform(0.93, 1.07) for _ in range(size))
            snr = math.inf if chance.random() < 0.1 else chance.uniform(*self.snr)
            gain = 10 ** chance.uniform(-1.5, 0.3)
        else:
            speeds, gain, snr = (1.0,) * size, 1.0, chance.uniform(20.0, 40.0)
        return WavePlan(
            text="".join(str(take.digit) for take in takes), recordings=takes,
            gaps=tuple(round(gap * self.rate) for gap in gaps), speeds=speeds, gain=gain, snr=snr,
        )  # fmt: skip


def _read_all(folder: Path) -> tuple[np.ndarray, list[Recording], int]:
    takes, parts, first, rates = [], [], 0, set()
    for file in sorted(folder.rglob("*.wav")) if folder.is_dir() else ():
        named = RECORDING_NAME.fullmatch(file.name)
        if named is None:
            continue
        try:
            with wave.open(str(file)) as opened:
                if opened.getnchannels() != 1 or opened.getsampwidth() != 2:
                    raise FileError(f"{file}: needs one channel of 16 bits, got another kind")
                rates.add(opened.getframerate())
                held = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
        except (wave.Error, EOFError, OSError) as error:
            raise FileError(f"{file}: needs to be a WAV file, got {error}") from error
        if len(held) < 2:
            raise FileError(f"{file}: needs to be a sound, got {len(held)} samples")
        takes.append(Recording(int(named[1]), named[2], int(named[3]), first, len(held)))
        parts.append(held)
        first += len(held)
    if not takes:
        raise FileError(f"{folder}: needs files such as 7_lucas_3.wav, got none")
    if len(rates) > 1:
        raise FileError(f"{folder}: needs one sample rate, got {sorted(rates)}")
    return np.concatenate(parts).astype("float32") / 32768, takes, rates.pop()


def render_waves(
    plans: Sequence[WavePlan], samples: Float[Tensor, " sample"], generator: torch.Generator
) -> tuple[Float[Tensor, "batch time"], Int[Tensor, " batch"]]:
    """Plans as sound, zeros behind the shorter ones, and how long each is, in samples.

    x(t) = gain · (take(first + speed · (t - start)) + noise), between two samples in a line

    >>> plan = WavePlan("1", (Recording(1, "a", 0, 0, 3),), (1, 1), (1.0,), 1.0, float("inf"))
    >>> render_waves([plan], torch.tensor([0.25, 0.5, 0.75]), rg.data.seeded_generator(0))[0]
    tensor([[0.0000, 0.2500, 0.5000, 0.0000]])
    """
    device, longest = samples.device, max(len(plan.recordings) for plan in plans)
    rows = np.zeros((4, len(plans), longest))
    rows[0] = 1 << 40  # takes that are not there never begin
    for row, plan in enumerate(plans):
        at = 0
        for n, (take, size) in enumerate(zip(plan.recordings, plan.lengths, strict=True)):
            at += plan.gaps[n]
            rows[:, row, n] = at, at + size, take.start, plan.speeds[n]
            at += size
    lengths = torch.tensor([plan.samples for plan in plans])
    begins, ends, firsts, speeds = torch.from_numpy(rows).to(device)
    place = torch.arange(int(lengths.max()), device=device)
    which = torch.searchsorted(begins, place.expand(len(plans), -1).double(), right=True) - 1
    inside, which = which >= 0, which.clamp(min=0)
    inside = inside & (place < ends.gather(1, which))
    # double: a position in the long row has more digits than float32 can hold
    real = (place - begins.gather(1, which)) * speeds.gather(1, which)
    whole = real.floor()
    at = (whole + firsts.gather(1, which)).long().masked_fill(~inside, 0)
    part = (real - whole).float()
    waves = samples[at] * (1 - part) + samples[(at + 1).clamp(max=len(samples) - 1)] * part
    waves = waves.masked_fill(~inside, 0)
    power = waves.square().sum(1, keepdim=True) / inside.sum(1, keepdim=True).clamp(min=1)
    ratio = torch.tensor([[10 ** (-plan.snr / 20), plan.gain] for plan in plans]).to(device)
    noise = (
        torch.randn(waves.shape, generator=generator, device=device) * power.sqrt() * ratio[:, :1]
    )
    waves = (waves + noise) * ratio[:, 1:]
    return waves.masked_fill(place >= lengths.to(device)[:, None], 0), lengths


def phone_targets(texts: Sequence[str], device: torch.device | str = "cpu") -> Batch:
    """The phones of strings of digits as labels, 0 being the blank, with how many each has.

    >>> "".join(PHONES[n - 1] for n in phone_targets(["28"])["phones"][0])
    'tuAt'
    """
    rows = [
        torch.tensor([1 + PHONES.index(x) for d in text for x in DIGIT_PHONES[int(d)]])
        for text in texts
    ]
    return {name: x.to(device) for name, x in collate([{"phones": row} for row in rows]).items()}
