"""Which features and augmentations help with an unseen speaker?

python examples/spoken_digits/ablation.py fsdd baseline "no cmvn" --speakers george  # 2 min each

A proxy for the recipe that one CPU core trains: its data, features and first two convolutions, then
two more instead of attention, on strings of two digits at known positions. Each named speaker is
held out in turn. Prints the error rate of known speakers and of the held-out one, with the most
frequent confusions.
"""

import math
import statistics
from collections import Counter
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from regard.data import seeded_generator
from regard.nn import ConvSubsampling, GlobalCMVN
from regard.ops import log_mel, online_cmvn

from frames import DigitAugmentation, FrameBank  # isort: skip
from recordings import Recording, SpokenDigits, WavePlan, render_waves  # isort: skip

BATCH_SIZE, DIM = 40, 96
VARIANTS: dict[str, dict] = {
    "baseline": {},
    "no cmvn": {"cmvn_depth": None},
    "cmvn depth 8": {"cmvn_depth": 8.0},
    "24 bands": {"mels": 24},
    "speaker interpolation": {"speaker_interpolation": 0.5},
    "speaker mixing": {"speaker_mixing": 0.5},
    "time warp": {"time_warp": 0.6},
    "gain jitter": {"gain_jitter": 0.4},
    "trim": {"trim_fraction": 0.3},
    "rooms": {"reverb": 0.5, "noise_tilt": 1.0},
    "half the eq": {"eq": 1.5},
    "more vtlp": {"vtlp": 0.2},
    "more pitch": {"pitch": (0.8, 1.25)},
    "less noise": {"min_snr": 18.0},
    "all": {"speaker_interpolation": 0.5, "speaker_mixing": 0.5, "reverb": 0.5, "noise_tilt": 1.0},
}


class DigitBatch(NamedTuple):
    """Frames, and the start, end and value of each digit."""

    frames: Tensor
    begins: Tensor
    ends: Tensor
    digits: Tensor


def main(
    folder: Annotated[str, typer.Argument(help="Recordings such as 7_lucas_3.wav.")],
    variants: Annotated[list[str] | None, typer.Argument(help="Variants; default: all.")] = None,
    speakers: Annotated[str, typer.Option(help="Held out in turn.")] = "george,nicolas",
    steps: int = 1000,
    seed: int = 0,
) -> None:
    torch.set_num_threads(1)
    for name in variants or VARIANTS:
        known, unseen, confusions = [], {}, Counter[str]()
        for speaker in speakers.split(","):
            seen_error, unseen[speaker], counts = train(
                folder, speaker, steps, seed, **VARIANTS[name]
            )
            known.append(seen_error)
            confusions += counts
        by_speaker = ", ".join(f"{speaker} {error:.1%}" for speaker, error in unseen.items())
        top = ", ".join(f"{pair} {count}" for pair, count in confusions.most_common(4))
        print(f"{name}: known {statistics.fmean(known):.1%}, {by_speaker} ({top})", flush=True)


def train(
    folder: str, speaker: str, steps: int, seed: int, *, mels: int = 40,
    cmvn_depth: float | None = 12.0, pitch: tuple[float, float] = (0.9, 1.1), **options: float,
) -> tuple[float, float, Counter[str]]:  # fmt: skip
    """Error rate of known speakers and of the held-out one, and its confusions."""
    torch.manual_seed(seed)
    source = SpokenDigits(folder, held_out_speakers=(speaker,), digits=(2, 2), speed=pitch)
    bank, augmentation = FrameBank(source, mels=mels), DigitAugmentation(**options)  # type: ignore[arg-type]
    model = Net(mels, cmvn_depth)
    model.fit([make_batch(bank, augmentation, seed, n).frames for n in range(10**6, 10**6 + 4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 40, 0.5 * (1 + math.cos(math.pi * n / steps)))
    )
    for n in range(steps):
        batch = make_batch(bank, augmentation, seed, n)
        loss = F.cross_entropy(model(batch).flatten(0, 1), batch.digits.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    known, _ = evaluate(model, source, "valid", mels)
    return known, *evaluate(model, source, "test", mels)


def make_batch(
    bank: FrameBank, augmentation: DigitAugmentation, seed: int, number: int
) -> DigitBatch:
    """A training batch, as of the recipe."""
    plans = [bank.draw_plan(f"{seed}/{number}/{n}", augmentation) for n in range(BATCH_SIZE)]
    x, _ = bank.join(plans)
    generator = seeded_generator(seed, number)
    x = bank.augment(x, plans, augmentation, generator, generator)
    sizes = torch.tensor([plan.sizes for plan in plans])
    ends = (sizes + torch.tensor([plan.gaps[:-1] for plan in plans])).cumsum(1)
    return DigitBatch(x, ends - sizes, ends, torch.tensor([[*map(int, p.text)] for p in plans]))


class Net(nn.Module):
    """Causal convolutions; the logits of a digit are the mean over its frames and a few more."""

    def __init__(self, mels: int, cmvn_depth: float | None):
        super().__init__()
        self.cmvn_depth, self.standardise = cmvn_depth, GlobalCMVN(mels)
        self.subsample, self.head = ConvSubsampling(mels, DIM), nn.Linear(DIM, 10)
        self.convolutions = nn.ModuleList(nn.Conv1d(DIM, DIM, 5, dilation=n) for n in (1, 2))
        self.dropout = nn.Dropout(0.2)

    def normalize(self, x: Tensor) -> Tensor:
        return x if self.cmvn_depth is None else online_cmvn(x, dynamic_range=self.cmvn_depth)[0]

    def fit(self, frames: list[Tensor]) -> None:
        rows = torch.cat([self.normalize(x).flatten(0, 1) for x in frames])[None]
        self.standardise.fit(rows, torch.tensor([rows.shape[1]]))

    def forward(self, batch: DigitBatch) -> Tensor:
        x = self.dropout(self.subsample(self.standardise(self.normalize(batch.frames)))).mT
        for step, layer in enumerate(self.convolutions, 1):
            y = F.layer_norm(x.mT, (DIM,)).mT
            x = x + self.dropout(F.gelu(layer(F.pad(y, (4 * step, 0)))))
        position = 4 * torch.arange(x.shape[2])
        inside = (position >= batch.begins[..., None]) & (position < batch.ends[..., None] + 12)
        weights = inside.float() / inside.sum(-1, keepdim=True)
        return 3 * weights @ self.head(x.mT)


@torch.no_grad()
def evaluate(model: Net, source: SpokenDigits, split: str, mels: int) -> tuple[float, Counter[str]]:
    """Error rate over all recordings of a split, in pairs of one speaker, and the confusions."""
    count, confusions = 0, Counter[str]()
    for speaker in source.recordings[split].values():
        recordings = [recording for group in speaker.values() for recording in group]
        order = torch.randperm(len(recordings), generator=seeded_generator(split)).tolist()
        pairs = [
            (recordings[a], recordings[b]) for a, b in zip(order[::2], order[1::2], strict=False)
        ]
        for at in range(0, len(pairs), 50):
            batch = render_pairs(source, pairs[at : at + 50], mels)
            for target, answer in zip(
                batch.digits.flatten().tolist(), model(batch).argmax(2).flatten().tolist(),
                strict=True,
            ):  # fmt: skip
                count += 1
                if target != answer:
                    confusions[f"{target} as {answer}"] += 1
    return confusions.total() / count, confusions


def render_pairs(
    source: SpokenDigits, pairs: list[tuple[Recording, Recording]], mels: int
) -> DigitBatch:
    """Pairs of recordings as waves, with noise at 30 dB, as the recipe evaluates them."""
    plans = [
        WavePlan(f"{a.digit}{b.digit}", (a, b), (1000, 1000, 1600), (1.0, 1.0), 1.0, 30.0)
        for a, b in pairs
    ]
    waves, _ = render_waves(plans, torch.from_numpy(source.samples), seeded_generator(0))
    sizes = torch.tensor([plan.lengths for plan in plans])
    ends = (sizes + 1000).cumsum(1)
    frames = log_mel(waves, source.rate, n_mels=mels)
    digits = torch.tensor([[*map(int, plan.text)] for plan in plans])
    return DigitBatch(frames, (ends - sizes) // 80, ends // 80, digits)


if __name__ == "__main__":
    typer.run(main)
