"""Which features and changes of training sounds help with a voice that was never heard?

python benchmarks/voices.py fsdd "no level" plain --voices george   # 2 minutes of one core each

A stand-in for the recipe `digits` that one core trains: its sounds, features and first two
convolutions, then two more instead of attention, and strings of two digits whose places are told.
Each named speaker is held out in turn. Prints the share of wrong answers for takes of the speakers
that were heard, and for all of the one that was not, with the commonest mistakes.
"""

import math
import statistics
from collections import Counter
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from regard.data import SpeechAugmentation, SpokenDigits, seeded_generator
from regard.data.audio.digit_frames import FrameBank
from regard.data.audio.digits import Recording, WavePlan, render_waves
from regard.nn import ConvSubsampling, GlobalCMVN
from regard.ops import log_mel, online_cmvn

ROWS, WIDE = 40, 96
CHANGES: dict[str, dict] = {
    "plain": {},
    "no level": {"level": None},
    "level 8": {"level": 8.0},
    "24 bands": {"mels": 24},
    "voices between": {"between": 0.5},
    "speakers mixed": {"mixed": 0.5},
    "uneven pace": {"bend": 0.6},
    "soft consonants": {"swell": 0.4},
    "takes cut": {"trim": 0.3},
    "rooms": {"echo": 0.5, "hiss": 1.0},
    "half the colour": {"colour": 1.5},
    "more warp": {"warp": 0.2},
    "more of pitch": {"pitch": (0.8, 1.25)},
    "less noise": {"snr": 18.0},
    "all": {"between": 0.5, "mixed": 0.5, "echo": 0.5, "hiss": 1.0},
}


class Heard(NamedTuple):
    """Frames, where each digit begins and ends in them, and which it is."""

    frames: Tensor
    begins: Tensor
    ends: Tensor
    digits: Tensor


def main(
    folder: Annotated[str, typer.Argument(help="Takes such as 7_lucas_3.wav.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Which; all if none is named.")
    ] = None,
    voices: Annotated[str, typer.Option(help="Who is held out in turn.")] = "george,nicolas",
    updates: int = 1000,
    seed: int = 0,
) -> None:
    torch.set_num_threads(1)
    for name in changes or CHANGES:
        known, unknown, wrong = [], {}, Counter[str]()
        for held in voices.split(","):
            near, far, mistakes = train(folder, held, updates, seed, **CHANGES[name])
            known.append(near)
            unknown[held] = far
            wrong += mistakes
        each = ", ".join(f"{who} {share:.1%}" for who, share in unknown.items())
        most = ", ".join(f"{pair} {count}" for pair, count in wrong.most_common(4))
        print(f"{name}: known {statistics.fmean(known):.1%}, {each} ({most})", flush=True)


def train(
    folder: str, held: str, updates: int, seed: int, *, mels: int = 40,
    level: float | None = 12.0, pitch: tuple[float, float] = (0.9, 1.1), **changes: float,
) -> tuple[float, float, Counter[str]]:  # fmt: skip
    """Wrong answers for speakers that were trained on, and for the held one, and which."""
    torch.manual_seed(seed)
    source = SpokenDigits(folder, held_out_speakers=(held,), digits=(2, 2), speed=pitch)
    voices, change = FrameBank(source, mels=mels), SpeechAugmentation(**changes)  # type: ignore[arg-type]
    model = Net(mels, level)
    first = [made(voices, change, seed, n).frames for n in range(1_000_000, 1_000_004)]
    model.fit(first)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 40, 0.5 * (1 + math.cos(math.pi * n / updates)))
    )
    for n in range(updates):
        heard = made(voices, change, seed, n)
        loss = F.cross_entropy(model(heard).flatten(0, 1), heard.digits.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    model.eval()
    near, _ = wrong(model, source, "valid", mels)
    return near, *wrong(model, source, "test", mels)


def made(voices: FrameBank, change: SpeechAugmentation, seed: int, number: int) -> Heard:
    """A batch of training, as the recipe makes it."""
    plans = [voices.draw_plan(f"{seed}/{number}/{n}", change) for n in range(ROWS)]
    x, _ = voices.join(plans)
    chance = seeded_generator(seed, number)
    x = voices.augment(x, plans, change, chance, chance)
    sizes = torch.tensor([plan.sizes for plan in plans])
    ends = (sizes + torch.tensor([plan.gaps[:-1] for plan in plans])).cumsum(1)
    return Heard(x, ends - sizes, ends, torch.tensor([[*map(int, p.text)] for p in plans]))


class Net(nn.Module):
    """Causal convolutions; the answer for a digit is the mean over its place and a little more."""

    def __init__(self, mels: int, level: float | None):
        super().__init__()
        self.level, self.standardise = level, GlobalCMVN(mels)
        self.subsample, self.head = ConvSubsampling(mels, WIDE), nn.Linear(WIDE, 10)
        self.more = nn.ModuleList(nn.Conv1d(WIDE, WIDE, 5, dilation=n) for n in (1, 2))
        self.dropout = nn.Dropout(0.2)

    def scaled(self, x: Tensor) -> Tensor:
        return x if self.level is None else online_cmvn(x, dynamic_range=self.level)[0]

    def fit(self, frames: list[Tensor]) -> None:
        rows = torch.cat([self.scaled(x).flatten(0, 1) for x in frames])[None]
        self.standardise.fit(rows, torch.tensor([rows.shape[1]]))

    def forward(self, heard: Heard) -> Tensor:
        x = self.dropout(self.subsample(self.standardise(self.scaled(heard.frames)))).mT
        for step, layer in enumerate(self.more, 1):
            y = F.layer_norm(x.mT, (WIDE,)).mT
            x = x + self.dropout(F.gelu(layer(F.pad(y, (4 * step, 0)))))
        place = 4 * torch.arange(x.shape[2])
        inside = (place >= heard.begins[..., None]) & (place < heard.ends[..., None] + 12)
        share = inside.float() / inside.sum(-1, keepdim=True)
        return 3 * share @ self.head(x.mT)


@torch.no_grad()
def wrong(model: Net, source: SpokenDigits, split: str, mels: int) -> tuple[float, Counter[str]]:
    """The share of all takes of a part that are heard wrong, in strings of two of one voice."""
    count, mistakes = 0, Counter[str]()
    for speaker in source.recordings[split].values():
        takes = [take for found in speaker.values() for take in found]
        order = torch.randperm(len(takes), generator=seeded_generator(split)).tolist()
        pairs = [(takes[a], takes[b]) for a, b in zip(order[::2], order[1::2], strict=False)]
        for at in range(0, len(pairs), 50):
            heard = said(source, pairs[at : at + 50], mels)
            for right, answer in zip(
                heard.digits.flatten().tolist(), model(heard).argmax(2).flatten().tolist(),
                strict=True,
            ):  # fmt: skip
                count += 1
                if right != answer:
                    mistakes[f"{right} as {answer}"] += 1
    return mistakes.total() / count, mistakes


def said(source: SpokenDigits, pairs: list[tuple[Recording, Recording]], mels: int) -> Heard:
    """Pairs of takes as the recipe tests them: waves, with noise 30 dB below."""
    plans = [
        WavePlan(f"{a.digit}{b.digit}", (a, b), (1000, 1000, 1600), (1.0, 1.0), 1.0, 30.0)
        for a, b in pairs
    ]
    waves, _ = render_waves(plans, torch.from_numpy(source.samples), seeded_generator(0))
    sizes = torch.tensor([plan.lengths for plan in plans])
    ends = (sizes + 1000).cumsum(1)
    frames = log_mel(waves, source.rate, n_mels=mels)
    digits = torch.tensor([[*map(int, plan.text)] for plan in plans])
    return Heard(frames, (ends - sizes) // 80, ends // 80, digits)


if __name__ == "__main__":
    typer.run(main)
