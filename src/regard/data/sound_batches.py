"""Batches of sounds that are made where the model is: Morse code, a whole batch at a time."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.batches import collate
from regard.data.made import Batch, Made, luck
from regard.data.morse import RISE, Keying, Morse, noise_level, presses
from regard.data.tokenizers import Tokenizer
from regard.errors import ConfigError
from regard.ops import log_mel, mel_frames

WINDOW = 16  # batches that are sorted by length together: little padding, order still by chance


class SoundBatches(Made):
    """Batches of `size` sounds of like lengths, from plans that are cheap to draw and to sort.

    `draw` gives the plan with a number, `seconds` says how long it will sound, and `render` makes
    a batch of plans into frames and targets.

    >>> batches = SoundBatches(float, lambda plan: plan, lambda plans, number: {
    ...     "x": torch.tensor(plans)}, size=2)
    >>> next(iter(batches))["x"].diff()  # neighbours in length
    tensor([1.])
    """

    def __init__(
        self,
        draw: Callable[[int], Any],
        seconds: Callable[[Any], float],
        render: Callable[[Sequence[Any], int], Batch],
        *,
        size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        if size < 1:
            raise ConfigError(f"size: needs 1 or more, got {size}")
        super().__init__(self._batch, seed=seed, rank=rank, world=world)
        self.draw, self.seconds, self.render, self.size = draw, seconds, render, size
        self._window = lru_cache(2)(self._planned)

    def _batch(self, number: int) -> Batch:
        window, place = divmod(number, WINDOW)
        return self.render(self._window(window)[place], number)

    def _planned(self, window: int) -> list[list[Any]]:
        first = window * WINDOW * self.size
        plans = [self.draw(first + n) for n in range(WINDOW * self.size)]
        plans.sort(key=self.seconds)
        batches = [plans[at : at + self.size] for at in range(0, len(plans), self.size)]
        Random(f"{self.seed}/{window}").shuffle(batches)
        return batches


def morse_batches(
    source: Morse,
    tokenizer: Tokenizer,
    *,
    mels: int,
    size: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
) -> SoundBatches:
    """The train part of Morse code, made on a device: noise, tone and log-mel of a batch at once.

    >>> tokenizer = rg.data.Characters.train(["ET"])
    >>> source = Morse(letters=(1, 1), alphabet="ET")
    >>> batch = next(iter(morse_batches(source, tokenizer, mels=8, size=2)))
    >>> batch["frames"].shape[2], batch["target"].shape
    (8, torch.Size([2, 1]))
    """

    def render(plans: Sequence[Keying], number: int) -> Batch:
        chance = luck(seed, "noise", number, device=device)
        waves, lengths = send(plans, source.rate, chance)
        return recognisable(waves, lengths, [p.text for p in plans], tokenizer, source.rate, mels)

    return SoundBatches(
        lambda number: source.keying(f"train/{seed}/{number}"), lambda plan: plan.seconds, render,
        size=size, seed=seed, rank=rank, world=world,
    )  # fmt: skip


def send(
    plans: Sequence[Keying], rate: int, chance: torch.Generator
) -> tuple[Float[Tensor, "batch sample"], Int[Tensor, " batch"]]:
    """Keyings as sound, zeros behind the shorter ones, and how long each is, in samples.

    >>> plan = Keying("E", 20.0, 0.1, 0.4, 600.0, 0.2, 0.0, 0.0, 10.0)
    >>> wave, lengths = send([plan], 8000, rg.data.luck(0))
    >>> wave.shape, lengths
    (torch.Size([1, 4480]), tensor([4480]))
    """
    device = chance.device
    cuts, lengths = [], []
    for plan in plans:
        before, dot = int(plan.before * rate), 1.2 / plan.wpm * rate
        edges = np.rint(np.array(presses(plan.text)[0]) * dot).astype(int)
        cuts.append(torch.from_numpy(edges + before))
        lengths.append(int(edges[-1]) + before + int(plan.after * rate))
    numbers = torch.tensor([plan[4:] for plan in plans], dtype=torch.float64)
    pitch, slow, phase, depth, _ = numbers.to(device, torch.float32).T[:, :, None]
    level = torch.tensor([[noise_level(plan.snr)] for plan in plans], device=device)
    edges = torch.nn.utils.rnn.pad_sequence(cuts, True, 1 << 40).to(device)
    ends = torch.tensor(lengths).to(device)
    place = torch.arange(max(lengths), device=device)
    # between an odd and an even edge the key is down
    down = torch.searchsorted(edges, place.expand(len(plans), -1).contiguous(), right=True) % 2
    time = place / rate
    wave = _soft(down == 1, rate) * torch.sin(2 * math.pi * pitch * time)
    wave = wave * (1 - depth * (0.5 + 0.5 * torch.sin(2 * math.pi * slow * time + phase)))
    wave = wave + level * torch.randn(wave.shape, generator=chance, device=device)
    wave = wave.masked_fill(place >= ends[:, None], 0)
    return wave / wave.abs().amax(1, keepdim=True), torch.tensor(lengths)


def _soft(down: Bool[Tensor, "batch sample"], rate: int) -> Float[Tensor, "batch sample"]:
    """The key with soft edges, as `tone` has them."""
    width = max(1, int(RISE * rate))
    window = torch.hann_window(width + 2, periodic=False, device=down.device)[1:-1]
    padded = F.pad(down[:, None].float(), (width, width), mode="replicate")
    soft = F.conv1d(padded, (window / window.sum())[None, None])
    first = width - width // 2  # where numpy, in `tone`, takes the middle to be
    return soft[:, 0, first : first + down.shape[1]]


def recognisable(
    waves: Float[Tensor, "batch sample"],
    lengths: Int[Tensor, " batch"],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    rate: int,
    mels: int,
) -> Batch:
    """What a recogniser learns from: log-mel frames and labels, with their lengths.

    >>> tokenizer = rg.data.Characters.train(["ET"])
    >>> batch = recognisable(torch.ones(1, 800), torch.tensor([800]), ["TE"], tokenizer, 8000, 4)
    >>> batch["frames_lengths"], batch["target"]
    (tensor([8]), tensor([[5, 4]]))
    """
    frames = log_mel(waves, rate, mels=mels)
    counts = torch.tensor([mel_frames(n, rate) for n in lengths.tolist()])
    labels = labelled(texts, tokenizer, frames.device)
    return {"frames": frames, "frames_lengths": counts.to(frames.device), **labels}


def labelled(
    texts: Sequence[str], tokenizer: Tokenizer, device: torch.device | str = "cpu"
) -> Batch:
    """Texts as the labels of a batch, with how many each has.

    >>> labelled(["TE", "E"], rg.data.Characters.train(["ET"]))["target_lengths"]
    tensor([2, 1])
    """
    batch = collate([{"target": tokenizer.encode(text)} for text in texts], tokenizer.pad)
    return {name: x.to(device) for name, x in batch.items()}
