"""Strings of digits made of log-mel frames: any pitch and pace, between two voices, in a room."""

import math
from collections.abc import Sequence
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

from regard.data.audio.audio_batches import AudioBatches, label_batch
from regard.data.audio.augmentation import (
    LOG_MEL_FLOOR,
    SpeechAugmentation,
    augment_log_mel,
    gain_jitter,
    random_eq_curves,
    reverb,
)
from regard.data.audio.digits import Recording, SpokenDigits, phone_targets
from regard.data.generated_batches import Batch, seeded_generator
from regard.data.text.tokenizers import Tokenizer
from regard.ops import frame_sizes, log_mel, mel_frame_count
from regard.ops.audio.log_mel import HOP_SECONDS

PITCHES = 7  # how many speeds each take is kept at
BATCH_RECORDINGS = 64  # takes whose frames are found at a time
TRIM_DEPTHS = (2.0, 3.0, 4.0, 5.0, 6.5, 8.0)  # nats below the loudest, where a take may be cut


class FramePlan(NamedTuple):
    """All that is drawn about one string of frames but its noise.

    >>> FramePlan("42", (0, 1), (0, 1), 0.0, (10, 20), (3, 3, 4), 20.0, 0.0).frames
    40
    """

    text: str
    rows: tuple[int, ...]  # of the table, one a digit
    other_rows: tuple[int, ...]  # the same digits of another voice
    other_weight: float  # how much of the other voice there is
    sizes: tuple[int, ...]  # frames of each digit
    gaps: tuple[int, ...]  # frames before each digit and after the last
    snr: float
    gain: float  # added to each log-mel
    time_warps: tuple[tuple[float, float], ...] = ()  # of the pace inside each digit
    trims: tuple[tuple[float, float], ...] = ()  # shares of each digit lost before and behind

    @property
    def frames(self) -> int:
        """How long it is."""
        return sum(self.sizes) + sum(self.gaps)


class FrameBank:
    """The training takes of a source as log-mel frames, each at several pitches.

    >>> import tempfile, wave
    >>> folder = tempfile.mkdtemp()
    >>> with wave.open(f"{folder}/7_ann_5.wav", "wb") as file:
    ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
    ...     file.writeframes(bytes(4000))
    >>> voices = FrameBank(SpokenDigits(folder), mels=8)
    >>> voices.draw_plan("a", SpeechAugmentation()).text.strip("7"), len(voices.lengths)
    ('', 7)
    """

    def __init__(self, source: SpokenDigits, *, mels: int):
        self.source, self.rate = source, source.rate
        takes, self.rows = list[Recording](), dict[str, dict[int, list[int]]]()
        for speaker, spoken in sorted(source.recordings["train"].items()):
            for digit, found in sorted(spoken.items()):
                first = len(takes)
                self.rows.setdefault(speaker, {})[digit] = [*range(first, first + len(found))]
                takes += found
        low, high = source.speed
        samples = torch.from_numpy(source.samples)
        waves = [samples[take.start : take.start + take.length] for take in takes]
        each = [_frames(waves, float(x), self.rate, mels) for x in np.geomspace(low, high, PITCHES)]
        pieces = [frames for take in zip(*each, strict=True) for frames in take]
        self.frames = torch.cat(pieces)
        self.sizes = [len(piece) for piece in pieces]
        self.lengths = torch.tensor(self.sizes)
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.powers = [float(wave.square().mean()) for wave in waves for _ in range(PITCHES)]
        self.trims = [_cuts(piece.numpy()) for piece in pieces]
        self.noise_mean, self.noise_std = _white(self.rate, mels)

    def to(self, device: torch.device | str) -> "FrameBank":
        """The same on a device."""
        moved = object.__new__(FrameBank)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device) if isinstance(value, Tensor) else value)
        return moved

    def draw_plan(self, key: str, augmentation: SpeechAugmentation) -> FramePlan:
        """What is said under a name, and how."""
        chance, speakers = Random(key), sorted(self.rows)
        one, two = chance.choice(speakers), chance.choice(speakers)
        between, mixed = (
            chance.random() < augmentation.speaker_interpolation,
            chance.random() < augmentation.speaker_mixing,
        )
        pitch, pace = (
            chance.randrange(PITCHES),
            1 + chance.uniform(-augmentation.tempo_range, augmentation.tempo_range),
        )
        rows, others, text = list[int](), list[int](), ""
        for _ in range(chance.randint(*self.source.digits)):
            voice = chance.choice(speakers) if mixed else one
            digit = chance.choice(sorted(self.rows[voice]))
            rows.append(chance.choice(self.rows[voice][digit]) * PITCHES + pitch)
            same = self.rows[two].get(digit)
            others.append(chance.choice(same) * PITCHES + pitch if same else rows[-1])
            text += str(digit)
        uneven = partial(chance.uniform, -1, 1)
        cuts = [
            (
                _lost(before, augmentation.trim_fraction, chance),
                _lost(behind, augmentation.trim_fraction, chance),
            )
            for before, behind in (self.trims[row] for row in rows)
        ]
        sizes = [
            self.sizes[row] * (1 - sum(cut)) / pace * chance.uniform(0.9, 1.1)
            for row, cut in zip(rows, cuts, strict=True)
        ]
        gaps = [chance.uniform(*self.source.gap) for _ in rows] + [chance.uniform(0.1, 0.5)]
        return FramePlan(
            text=text, rows=tuple(rows), other_rows=tuple(others),
            other_weight=chance.random() if between else 0.0,
            sizes=tuple(max(4, round(size)) for size in sizes),
            gaps=tuple(round(gap / HOP_SECONDS) for gap in gaps),
            snr=math.inf if chance.random() < 0.1 else chance.uniform(augmentation.min_snr, 45.0),
            gain=chance.uniform(-6.9, 1.4),
            time_warps=tuple((augmentation.time_warp * uneven(), augmentation.time_warp * uneven()) for _ in rows),
            trims=tuple(cuts),
        )  # fmt: skip

    def join(
        self, plans: Sequence[FramePlan]
    ) -> tuple[Float[Tensor, "batch time mel"], Int[Tensor, " batch"]]:
        """Plans as frames without noise, and how many each has; two voices are mixed in the log.

        x_t = (1 - share) · one(p) + share · other(p),   p = t + a sin(πt)/π + b sin(2πt)/4π

        Each is stretched to the digit's frames, so that t goes from 0 to 1, or from what is cut
        before to what is cut behind; a and b are its bends.
        """
        device, longest = self.frames.device, max(len(plan.rows) for plan in plans)
        table = np.zeros((4, len(plans), longest), dtype=np.int64)
        table[0] = 1 << 40  # digits that are not there never begin
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
        place = torch.arange(int(counts.max()), device=device).expand(len(plans), -1).contiguous()
        which = torch.searchsorted(begins, place, right=True) - 1
        inside, which = which >= 0, which.clamp(min=0)
        since, size = place - begins.gather(1, which), sizes.gather(1, which)
        inside = inside & (since < size)
        part = (since / (size - 1)).clamp(0, 1)
        a, b, before, behind = (x.gather(1, which) for x in torch.from_numpy(shapes).to(device))
        turn = math.pi * part
        part = part + (a * turn.sin() + b / 4 * (2 * turn).sin()) / math.pi
        part = before + part * (1 - before - behind)
        share = torch.tensor([plan.other_weight for plan in plans], device=device)[:, None, None]
        one = self._stretched(rows.gather(1, which), part)
        other = self._stretched(others.gather(1, which), part)
        return torch.lerp(one, other, share).masked_fill(~inside[..., None], LOG_MEL_FLOOR), counts

    def augment(
        self,
        x: Float[Tensor, "batch time mel"],
        plans: Sequence[FramePlan],
        augmentation: SpeechAugmentation,
        cpu_generator: torch.Generator,
        generator: torch.Generator,
    ) -> Float[Tensor, "batch time mel"]:
        """Joined frames as another throat, room and microphone give them; `moved` is of x's device.

        microphone(noise(room(throat(mouth(x)))))
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
        """With noise as each plan says, of a colour of its own, as log-mel of a wave has it."""
        powers = [fmean(self.powers[row] for row in plan.rows) for plan in plans]
        levels = [
            math.log(max(power, 1e-10)) - plan.snr * math.log(10) / 10
            for power, plan in zip(powers, plans, strict=True)
        ]
        told = torch.tensor([levels, [plan.gain for plan in plans]]).to(x)[:, :, None, None]
        level = told[0] + self.noise_mean
        level = level + random_eq_curves(len(x), x.shape[2], noise_tilt, generator)[:, None]
        drawn = torch.randn(x.shape, generator=generator, device=x.device)
        x = torch.logaddexp(x, level + self.noise_std * drawn)
        return (x + told[1]).clamp(min=LOG_MEL_FLOOR)

    def _stretched(self, row: Tensor, part: Tensor) -> Tensor:
        """The frames of rows of the table at a part of their length."""
        length = self.lengths[row]
        real = part * (length - 1)
        whole = real.floor().minimum(length - 2)
        at = self.starts[row] + whole.long()
        return torch.lerp(self.frames[at], self.frames[at + 1], (real - whole)[..., None])


def digit_batches(
    source: SpokenDigits,
    tokenizer: Tokenizer,
    *,
    mels: int,
    batch_size: int,
    augmentation: SpeechAugmentation | None = None,
    second_view: bool = False,
    phones: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> AudioBatches:
    """The train part, made on a device, with frames as other throats and microphones give them.

    With `again` each string is there a second time, as one more throat and microphone give it;
    with `phones` those of its digits are told too.

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
    told = SpeechAugmentation() if augmentation is None else augmentation
    voices = _voices(source, mels).to(device)

    def render(plans: Sequence[FramePlan], number: int) -> Batch:
        chance = seeded_generator(seed, "voice", number)
        moved = seeded_generator(seed, "noise", number, device=device)
        joined, counts = voices.join(plans)
        batch = {"frames_lengths": counts.to(device)}
        for name in ("frames", "frames_again") if second_view else ("frames",):
            batch[name] = voices.augment(joined, plans, told, chance, moved)
        texts = [plan.text for plan in plans]
        if phones:
            batch |= phone_targets(texts, device)
        return batch | label_batch(texts, tokenizer, device)

    return AudioBatches(
        lambda number: voices.draw_plan(f"train/{seed}/{number}", told), lambda plan: plan.frames,
        render, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size,
    )  # fmt: skip


@lru_cache(2)
def _voices(source: SpokenDigits, mels: int) -> FrameBank:
    return FrameBank(source, mels=mels)  # some thousand takes at every pitch: seconds


def _frames(waves: Sequence[Tensor], speed: float, rate: int, mels: int) -> list[Tensor]:
    """Takes at a speed, each from where its first sample enters a frame to where its last leaves.

    Many at a time: there are thousands of them.
    """
    window, hop = frame_sizes(rate)
    said, found = list[Tensor](), list[Tensor]()
    for wave in waves:
        real = torch.arange(int((len(wave) - 1) / speed)).double() * speed
        whole = real.long()
        faster = torch.lerp(wave[whole], wave[whole + 1], (real - whole).float())
        said.append(F.pad(faster, (window - hop // 2, window)))
    for first in range(0, len(said), BATCH_RECORDINGS):
        some = said[first : first + BATCH_RECORDINGS]
        frames = log_mel(pad_sequence(some, True), rate, n_mels=mels)
        found += [x[: mel_frame_count(len(one), rate)] for x, one in zip(frames, some, strict=True)]
    return found


def _cuts(frames: np.ndarray) -> tuple[list[float], list[float]]:
    """Shares of a take before and behind what is less than so many nats below its loudest."""
    level = np.log(np.exp(frames).sum(1))
    below = [np.flatnonzero(level > level.max() - depth) for depth in TRIM_DEPTHS]
    last = len(frames) - 1
    return [loud[0] / last for loud in below], [1 - loud[-1] / last for loud in below]


def _lost(shares: list[float], trim: float, chance: Random) -> float:
    return chance.choice(shares) if chance.random() < trim else 0.0


def _white(rate: int, mels: int) -> tuple[Tensor, Tensor]:
    """The mean and the spread of log-mel frames of white noise of power one."""
    wave = torch.randn(rate * 10, generator=torch.Generator().manual_seed(0))
    frames = log_mel(wave, rate, n_mels=mels)
    return frames.mean(0), frames.std(0)
