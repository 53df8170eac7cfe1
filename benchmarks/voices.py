"""Which changes of training sounds help with a voice that was never heard?

python benchmarks/voices.py fsdd "two masks" "no masks" --seeds 3   # 75 s of one core each

A stand-in for the recipe `digits` that trains in seconds: single digits, each as 24 frames, a
network of two layers, 500 updates, every speaker held out in turn. Prints the share of wrong
answers for takes of the speakers that were heard, and for the one that was not.
"""

import math
import statistics
from functools import cache
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from regard.data import Digits, luck, other_voice
from regard.data.digits import Spoken, Take, say_digits
from regard.ops import log_mel, mel_frames

MELS, FRAMES, TAKES, VALID = 40, 24, 30, 5
SPEEDS, STEPS, ROWS, WIDE = (0.8, 1.0, 1.25), 500, 128, 192
CHANGES: dict[str, dict] = {
    "two masks": {},
    "no masks": {"masks": 0},
    "no warp, no colour": {"warp": 0.0, "colour": 0.0},
    "twice the warp": {"warp": 0.3},
    "mean of the take": {"kind": "take"},
    "running mean": {"kind": "mean"},
    "running loudness": {"kind": "level"},
}


def main(
    folder: Annotated[str, typer.Argument(help="Takes such as 7_lucas_3.wav.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Which; all if none is named.")
    ] = None,
    seeds: int = 1,
) -> None:
    torch.set_num_threads(1)
    voices = Voices(folder)
    for name in changes or CHANGES:
        known, unknown = [], {}
        for held in voices.names:
            found = [train(voices, held, seed=n, **CHANGES[name]) for n in range(seeds)]
            known += [a for a, _ in found]
            unknown[held] = statistics.fmean(b for _, b in found)
        each = ", ".join(f"{who} {wrong:.1%}" for who, wrong in unknown.items())
        mean = statistics.fmean(unknown.values())
        print(f"{name}: known {statistics.fmean(known):.1%}, held {mean:.1%} ({each})", flush=True)


class Voices:
    """The first takes of every speaker, as frames."""

    def __init__(self, folder: str):
        source = Digits(folder)
        self.rate, self.samples = source.rate, torch.from_numpy(source.samples)
        takes: dict[str, dict[int, list[Take]]] = {}
        for split in source.takes.values():
            for who, spoken in split.items():
                for digit, found in spoken.items():
                    takes.setdefault(who, {}).setdefault(digit, []).extend(found)
        self.names = sorted(takes)
        self.takes = {
            who: [t for found in takes[who].values() for t in found if t.number < TAKES]
            for who in self.names
        }
        self.labels = {who: torch.tensor([t.digit for t in self.takes[who]]) for who in self.names}
        self.numbers = {who: torch.tensor([t.number for t in self.takes[who]]) for who in takes}

    @cache  # noqa: B019 one object lives as long as the program
    def frames(self, who: str, speed: float, kind: str) -> Tensor:
        """All takes of a speaker: take, time, mel."""
        rows = []
        for at in range(0, len(self.takes[who]), 100):
            takes = self.takes[who][at : at + 100]
            plans = [Spoken(str(t.digit), (t,), (800, 400), (speed,), 1.0, 30.0) for t in takes]
            waves, lengths = say_digits(plans, self.samples, luck(who, at))
            heard = log_mel(waves, self.rate, mels=MELS)
            for row, length in zip(heard, lengths.tolist(), strict=True):
                kept = levelled(row[: mel_frames(length, self.rate)], kind)
                rows.append(F.interpolate(kept.T[None], size=FRAMES, mode="linear")[0].T)
        return torch.stack(rows)


def levelled(x: Tensor, kind: str) -> Tensor:
    """Without its mean: of all of it, or of what was heard so far, with 30 frames before it."""
    if kind == "take":
        return x - x.mean(0)
    if kind in ("mean", "level"):
        heard = x if kind == "mean" else x.mean(1, keepdim=True)
        count = torch.arange(1, len(x) + 1)[:, None]
        return x - (heard.cumsum(0) + 30 * BEFORE) / (count + 30)
    return x


BEFORE = -5.0  # about the mean of log-mel frames of these takes


def train(
    voices: Voices, held: str, *, kind: str = "", warp: float = 0.15, colour: float = 0.7,
    masks: int = 2, seed: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """Wrong answers on takes of speakers that were trained on, and on all of the held one."""
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    others = [who for who in voices.names if who != held]
    inputs = [torch.cat([voices.frames(who, speed, kind) for who in others]) for speed in SPEEDS]
    labels = torch.cat([voices.labels[who] for who in others])
    numbers = torch.cat([voices.numbers[who] for who in others])
    fit, valid = (numbers >= VALID).nonzero()[:, 0], numbers < VALID
    plain = inputs[SPEEDS.index(1.0)]
    mean, spread = plain.mean((0, 1)), plain.std((0, 1))
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(FRAMES * MELS, WIDE), nn.GELU(), nn.Dropout(0.2),
        nn.Linear(WIDE, WIDE), nn.GELU(), nn.Dropout(0.2), nn.Linear(WIDE, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 30, 0.5 * (1 + math.cos(math.pi * n / STEPS)))
    )
    for _ in range(STEPS):
        rows = fit[torch.randint(len(fit), (ROWS,), generator=chance)]
        x = inputs[int(torch.randint(len(SPEEDS), (1,), generator=chance))][rows]
        x = other_voice(x, chance, warp=warp, colour=colour, masks=0)
        # louder or softer; each kind of take the same, or the comparison would be of that
        x = x + torch.empty(ROWS, 1, 1).uniform_(-3.45, 0.7, generator=chance)
        x = hidden(x, chance, masks)
        loss = F.cross_entropy(model((x - mean) / spread), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    model.eval()

    @torch.no_grad()
    def wrong(x: Tensor, y: Tensor) -> float:
        return float((model((x - mean) / spread).argmax(1) != y).float().mean())

    return wrong(plain[valid], labels[valid]), wrong(
        voices.frames(held, 1.0, kind), voices.labels[held]
    )


def hidden(x: Tensor, chance: torch.Generator, masks: int) -> Tensor:
    """Some bands of up to 5 mels and moments of up to 3 frames at the mean, the same in a batch."""
    mean = x.mean()
    for _ in range(masks):
        for axis, size, most in ((2, MELS, 5), (1, FRAMES, 3)):
            first = int(torch.randint(size, (1,), generator=chance))
            width = int(torch.randint(most + 1, (1,), generator=chance))
            x.narrow(axis, first, min(width, size - first)).fill_(mean)
    return x


if __name__ == "__main__":
    typer.run(main)
