"""Digit strings joined from log-mel frames: random pitch, tempo, speaker mixture and room."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.audio.augmentation import (
    LOG_MEL_FLOOR,
    SpeechAugmentation,
    augment_log_mel,
    gain_jitter,
    random_eq_curves,
    reverb,
)
from regard.data.audio.speech_batches import AudioBatches, label_batch
from regard.data.batches import Batch, seeded_generator
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError
from regard.ops import frame_sizes, log_mel, mel_frame_count
from regard.ops.audio import HOP_SECONDS

from recordings import Recording, SpokenDigits  # isort: skip

PITCHES = 7  # speeds at which each recording is stored
BATCH_RECORDINGS = 64  # recordings per call of log_mel
TRIM_DEPTHS = (2.0, 3.0, 4.0, 5.0, 6.5, 8.0)  # nats below the loudest frame, where to trim
MAX_TIME_WARP = 0.65  # 1 + a cos πt + b/2 cos 2πt stays positive


@dataclass(frozen=True, kw_only=True)
class DigitAugmentation(SpeechAugmentation):
    """`SpeechAugmentation`, and what needs single recordings of each digit.

    Args:
        tempo_range: largest relative change of tempo.
        time_warp: largest change of tempo within a digit.
        trim_fraction: fraction of digits that lose a soft start, and of those that lose a soft end.
        speaker_interpolation: fraction of strings whose frames are a mean of two speakers.
        speaker_mixing: fraction of strings whose digits are each of any speaker.
        noise_tilt: scale of the random spectrum of the noise.
        min_snr: lowest signal-to-noise ratio, in dB.
    """

    tempo_range: float = 0.35
    time_warp: float = 0.0
    trim_fraction: float = 0.0
    speaker_interpolation: float = 0.0
    speaker_mixing: float = 0.0
    noise_tilt: float = 0.0
    min_snr: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trim_fraction", "speaker_interpolation", "speaker_mixing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: needs 0 to 1, got {getattr(self, name)}")
        if not 0 <= self.time_warp <= MAX_TIME_WARP:
            raise ConfigError(
                f"time_warp: needs 0 to {MAX_TIME_WARP}, or time would run backwards, "
                f"got {self.time_warp}"
            )


class FramePlan(NamedTuple):
    """All random parameters of a string of frames but its noise.

    >>> FramePlan("42", (0, 1), (0, 1), 0.0, (10, 20), (3, 3, 4), 20.0, 0.0).frames
    40
    """

    text: str
    rows: tuple[int, ...]  # of the frame bank, one per digit
    other_rows: tuple[int, ...]  # the same digits of another speaker
    other_weight: float  # of the other speaker
    sizes: tuple[int, ...]  # frames of each digit
    gaps: tuple[int, ...]  # frames before each digit and after the last
    snr: float
    gain: float  # added to each log-mel
    time_warps: tuple[tuple[float, float], ...] = ()  # within each digit
    trims: tuple[tuple[float, float], ...] = ()  # fraction of each digit trimmed at start and end

    @property
    def frames(self) -> int:
        """Length in frames."""
        return sum(self.sizes) + sum(self.gaps)


class FrameBank:
    """Log-mel frames of all training recordings, each at several pitches.

    >>> import tempfile, wave
    >>> folder = tempfile.mkdtemp()
    >>> with wave.open(f"{folder}/7_ann_5.wav", "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(4000))
    >>> bank = FrameBank(SpokenDigits(folder), mels=8)
    >>> bank.draw_plan("a", DigitAugmentation()).text.strip("7"), len(bank.lengths)
    ('', 7)
    """

    def __init__(self, source: SpokenDigits, *, mels: int):
        self.source, self.rate = source, source.rate
        recordings, self.rows = list[Recording](), dict[str, dict[int, list[int]]]()
        for speaker, by_digit in sorted(source.recordings["train"].items()):
            for digit, group in sorted(by_digit.items()):
                first = len(recordings)
                self.rows.setdefault(speaker, {})[digit] = [*range(first, first + len(group))]
                recordings += group
        low, high = source.speed
        samples = torch.from_numpy(source.samples)
        waves = [samples[x.start : x.start + x.length] for x in recordings]
        speeds = np.geomspace(low, high, PITCHES)
        by_speed = [_frames(waves, float(speed), self.rate, mels) for speed in speeds]
        segments = [frames for row in zip(*by_speed, strict=True) for frames in row]
        self.frames = torch.cat(segments)
        self.sizes = [len(segment) for segment in segments]
        self.lengths = torch.tensor(self.sizes)
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.powers = [float(wave.square().mean()) for wave in waves for _ in range(PITCHES)]
        self.trims = [_trim_points(segment.numpy()) for segment in segments]
        self.noise_mean, self.noise_std = _white_noise_statistics(self.rate, mels)

    def to(self, device: torch.device | str) -> "FrameBank":
        """A copy on a device."""
        moved = object.__new__(FrameBank)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device) if isinstance(value, Tensor) else value)
        return moved

    def draw_plan(self, key: str, augmentation: DigitAugmentation) -> FramePlan:
        """The string of a key."""
        rng, speakers = Random(key), sorted(self.rows)
        speaker, other = rng.choice(speakers), rng.choice(speakers)
        interpolate = rng.random() < augmentation.speaker_interpolation
        mix = rng.random() < augmentation.speaker_mixing
        pitch = rng.randrange(PITCHES)
        tempo = 1 + rng.uniform(-augmentation.tempo_range, augmentation.tempo_range)
        rows, others, text = list[int](), list[int](), ""
        for _ in range(rng.randint(*self.source.digits)):
            voice = rng.choice(speakers) if mix else speaker
            digit = rng.choice(sorted(self.rows[voice]))
            rows.append(rng.choice(self.rows[voice][digit]) * PITCHES + pitch)
            same = self.rows[other].get(digit)
            others.append(rng.choice(same) * PITCHES + pitch if same else rows[-1])
            text += str(digit)
        uniform = partial(rng.uniform, -1, 1)
        trims = [
            (
                _draw_trim(before, augmentation.trim_fraction, rng),
                _draw_trim(behind, augmentation.trim_fraction, rng),
            )
            for before, behind in (self.trims[row] for row in rows)
        ]
        sizes = [
            self.sizes[row] * (1 - sum(trim)) / tempo * rng.uniform(0.9, 1.1)
            for row, trim in zip(rows, trims, strict=True)
        ]
        gaps = [rng.uniform(*self.source.gap) for _ in rows] + [rng.uniform(0.1, 0.5)]
        return FramePlan(
            text=text, rows=tuple(rows), other_rows=tuple(others),
            other_weight=rng.random() if interpolate else 0.0,
            sizes=tuple(max(4, round(size)) for size in sizes),
            gaps=tuple(round(gap / HOP_SECONDS) for gap in gaps),
            snr=math.inf if rng.random() < 0.1 else rng.uniform(augmentation.min_snr, 45.0),
            gain=rng.uniform(-6.9, 1.4),
            time_warps=tuple(
                (augmentation.time_warp * uniform(), augmentation.time_warp * uniform())
                for _ in rows
            ),
            trims=tuple(trims),
        )  # fmt: skip

    def join(
        self, plans: Sequence[FramePlan]
    ) -> tuple[Float[Tensor, "batch time mel"], Int[Tensor, " batch"]]:
        """Noise-free frames of plans, and their counts; two speakers are mixed in the log domain.

        x_t = (1 - weight) · one(p) + weight · other(p),   p = t + a sin(πt)/π + b sin(2πt)/4π

        t is the relative position in a digit, between its trims; a and b are its time warps.
        """
        device, longest = self.frames.device, max(len(plan.rows) for plan in plans)
        table = np.zeros((4, len(plans), longest), dtype=np.int64)
        table[0] = 1 << 40  # missing digits never start
        shapes = np.zeros((4, len(plans), longest), dtype=np.float32)
        for n, plan in enumerate(plans):
            ends = np.cumsum(np.add(plan.sizes, plan.gaps[:-1]))
            table[:, n, : len(ends)] = ends - plan.sizes, plan.sizes, plan.rows, plan.other_rows
            if plan.time_warps:
                shapes[:2, n, : len(ends)] = np.transpose(plan.time_warps)
            if plan.trims:
                shapes[2:, n, : len(ends)] = np.transpose(plan.trims)
        begins, sizes, rows, others = torch.from_numpy(table).to(device)
        counts = torch.tensor([plan.frames for plan in plans])
        position = (
            torch.arange(int(counts.max()), device=device).expand(len(plans), -1).contiguous()
        )
        which = torch.searchsorted(begins, position, right=True) - 1
        inside, which = which >= 0, which.clamp(min=0)
        since, size = position - begins.gather(1, which), sizes.gather(1, which)
        inside = inside & (since < size)
        part = (since / (size - 1)).clamp(0, 1)
        a, b, before, behind = (x.gather(1, which) for x in torch.from_numpy(shapes).to(device))
        angle = math.pi * part
        part = part + (a * angle.sin() + b / 4 * (2 * angle).sin()) / math.pi
        part = before + part * (1 - before - behind)
        weight = torch.tensor([plan.other_weight for plan in plans], device=device)[:, None, None]
        one = self._stretched(rows.gather(1, which), part)
        other = self._stretched(others.gather(1, which), part)
        return torch.lerp(one, other, weight).masked_fill(~inside[..., None], LOG_MEL_FLOOR), counts

    def augment(
        self,
        x: Float[Tensor, "batch time mel"],
        plans: Sequence[FramePlan],
        augmentation: DigitAugmentation,
        cpu_generator: torch.Generator,
        generator: torch.Generator,
    ) -> Float[Tensor, "batch time mel"]:
        """Augment joined frames: eq(noise(reverb(vtlp(gain_jitter(x))))).

        `generator` is on the device of x.
        """
        x = gain_jitter(x, augmentation.gain_jitter, generator)
        x = augment_log_mel(x, cpu_generator, vtlp=augmentation.vtlp, eq=0.0, spec_augment=0)
        x = self.add_noise(
            reverb(x, augmentation.reverb, generator), plans, generator, augmentation.noise_tilt
        )
        return augment_log_mel(
            x, cpu_generator, vtlp=0.0, eq=augmentation.eq, spec_augment=augmentation.spec_augment
        )

    def add_noise(
        self,
        x: Float[Tensor, "batch time mel"],
        plans: Sequence[FramePlan],
        generator: torch.Generator,
        noise_tilt: float,
    ) -> Float[Tensor, "batch time mel"]:
        """Add noise with a random spectrum, as the log-mel of a noisy wave would have it."""
        powers = [fmean(self.powers[row] for row in plan.rows) for plan in plans]
        levels = [
            math.log(max(power, 1e-10)) - plan.snr * math.log(10) / 10
            for power, plan in zip(powers, plans, strict=True)
        ]
        levels, gains = torch.tensor([levels, [plan.gain for plan in plans]]).to(x)[
            :, :, None, None
        ]
        level = levels + self.noise_mean
        level = level + random_eq_curves(len(x), x.shape[2], noise_tilt, generator)[:, None]
        noise = torch.randn(x.shape, generator=generator, device=x.device)
        x = torch.logaddexp(x, level + self.noise_std * noise)
        return (x + gains).clamp(min=LOG_MEL_FLOOR)

    def _stretched(self, row: Tensor, part: Tensor) -> Tensor:
        """Frames of rows at a relative position, interpolated."""
        length = self.lengths[row]
        exact = part * (length - 1)
        whole = exact.floor().minimum(length - 2)
        at = self.starts[row] + whole.long()
        return torch.lerp(self.frames[at], self.frames[at + 1], (exact - whole)[..., None])


def digit_batches(
    source: SpokenDigits,
    tokenizer: Tokenizer,
    *,
    mels: int,
    batch_size: int,
    augmentation: DigitAugmentation | None = None,
    second_view: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> AudioBatches:
    """Endless augmented training batches, computed on a device.

    With `second_view`, `frames_again` has the same strings with another augmentation.

    >>> import tempfile, wave
    >>> folder = tempfile.mkdtemp()
    >>> with wave.open(f"{folder}/7_ann_5.wav", "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(4000))
    >>> tokenizer = rg.data.CharTokenizer.train(["7"])
    >>> batch = next(iter(digit_batches(SpokenDigits(folder), tokenizer, mels=8, batch_size=2)))
    >>> batch["frames"].shape[::2], batch["target"].unique().tolist()[-1]
    (torch.Size([2, 8]), 4)
    """
    options = DigitAugmentation() if augmentation is None else augmentation
    bank = _frame_bank(source, mels).to(device)

    def render(plans: Sequence[FramePlan], number: int) -> Batch:
        cpu_generator = seeded_generator(seed, "voice", number)
        generator = seeded_generator(seed, "noise", number, device=device)
        joined, counts = bank.join(plans)
        batch = {"frames_lengths": counts.to(device)}
        for name in ("frames", "frames_again") if second_view else ("frames",):
            batch[name] = bank.augment(joined, plans, options, cpu_generator, generator)
        return batch | label_batch([plan.text for plan in plans], tokenizer, device)

    return AudioBatches(
        lambda number: bank.draw_plan(f"train/{seed}/{number}", options), lambda plan: plan.frames,
        render, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size,
    )  # fmt: skip


@lru_cache(2)
def _frame_bank(source: SpokenDigits, mels: int) -> FrameBank:
    return FrameBank(source, mels=mels)  # takes seconds


def _frames(waves: Sequence[Tensor], speed: float, rate: int, mels: int) -> list[Tensor]:
    """Frames of recordings at a speed, from the first to the last that overlaps the recording."""
    window, hop = frame_sizes(rate)
    padded, frames = list[Tensor](), list[Tensor]()
    for wave in waves:
        exact = torch.arange(int((len(wave) - 1) / speed)).double() * speed
        whole = exact.long()
        faster = torch.lerp(wave[whole], wave[whole + 1], (exact - whole).float())
        padded.append(F.pad(faster, (window - hop // 2, window)))
    for first in range(0, len(padded), BATCH_RECORDINGS):
        batch = padded[first : first + BATCH_RECORDINGS]
        rows = log_mel(pad_sequence(batch, True), rate, n_mels=mels)
        frames += [x[: mel_frame_count(len(y), rate)] for x, y in zip(rows, batch, strict=True)]
    return frames


def _trim_points(frames: np.ndarray) -> tuple[list[float], list[float]]:
    """Fractions before and after the part within each depth of the loudest frame."""
    level = np.log(np.exp(frames).sum(1))
    below = [np.flatnonzero(level > level.max() - depth) for depth in TRIM_DEPTHS]
    last = len(frames) - 1
    return [loud[0] / last for loud in below], [1 - loud[-1] / last for loud in below]


def _draw_trim(points: list[float], probability: float, rng: Random) -> float:
    return rng.choice(points) if rng.random() < probability else 0.0


def _white_noise_statistics(rate: int, mels: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of log-mel frames of white noise of power 1."""
    wave = torch.randn(rate * 10, generator=torch.Generator().manual_seed(0))
    frames = log_mel(wave, rate, n_mels=mels)
    return frames.mean(0), frames.std(0)
