"""One long row of tokens in windows: batches to train on, and what a model makes of all of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.data.source import permute_index
from regard.errors import ConfigError, FileError
from regard.train.losses import label_smoothed_cross_entropy

TOGETHER = 1 << 14  # tokens that are scored in one call


class WindowBatches:
    """Batches of windows of a row, each with the token after it; every turn cuts at another place.

    All ranks walk one list of batches and take turns, so that the order is one, whatever the world.

    >>> batches = WindowBatches(torch.arange(100), length=4, rows=2)
    >>> next(iter(batches))["tokens"].diff().unique()  # neighbours stay neighbours
    tensor([1])
    >>> batches.state()["position"]
    1
    """

    def __init__(
        self,
        row: Int[Tensor, " time"],
        *,
        length: int,
        rows: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: needs to be from 0 to {world_size - 1}, got {rank}")
        if len(row) < 2 * length + 1:
            raise ConfigError(
                f"length: needs two windows and a token, {2 * length + 1}, got {len(row)} tokens "
                f"in all; try a shorter length or more text"
            )
        self.row, self.length, self.rows = row, length, rows
        self.seed, self.rank, self.world_size, self.position = seed, rank, world_size, 0
        self.windows_per_epoch = (
            len(row) - 1
        ) // length - 1  # windows a turn; one less: the first cut moves

    def state(self) -> dict[str, int]:
        """Where it stands, for all ranks together: how many batches were given out."""
        held = {name: getattr(self, name) for name in ("seed", "length", "rows")}
        return {**held, "position": self.position}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on from a state: the next batch is the one that would have come."""
        if set(state) != {"seed", "length", "rows", "position"}:
            raise FileError(f"{state}: needs length, position, rows, seed of Windows.state()")
        for name in ("length", "rows"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"{name}: needs to be {state[name]} as in the state, got {getattr(self, name)}"
                )
        self.seed, self.position = state["seed"], state["position"]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            first = (self.position + self.rank) * self.rows
            starts = torch.tensor([self._start(n) for n in range(first, first + self.rows)])
            self.position += self.world_size
            yield {"tokens": _windows(self.row, starts, self.length)}

    def _start(self, number: int) -> int:
        turn, index = divmod(number, self.windows_per_epoch)
        shift = permute_index(turn % self.length, self.length, f"{self.seed}/shift")
        return shift + self.length * permute_index(
            index, self.windows_per_epoch, f"{self.seed}/{turn}"
        )


class LanguageEvaluator:
    """How well a model knows what comes next in some rows: nats a token, and bits a byte.

    loss = Σ -log p(token) / tokens,   bits per byte = loss / ln 2 · tokens / bytes

    Every token but the first of each row is told once, from the tokens of its row that are in the
    same window: `overlap` at least, where there are so many. `most` windows, evenly spread, stand
    for all.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=256)).eval()
    >>> scores = LanguageEvaluator([torch.arange(100)], 100, length=8)(model)
    >>> round(scores["bits_per_byte"] / scores["loss"] * math.log(2), 2)  # 99 are told
    0.99
    """

    def __init__(
        self,
        rows: Sequence[Int[Tensor, " time"]],
        num_bytes: int,
        *,
        length: int,
        overlap: int = 0,
        max_windows: int | None = None,
        baselines: Mapping[str, float] | None = None,
    ):
        self.row, self.length, self.baselines = torch.cat(list(rows)), length, dict(baselines or {})
        told = sum(len(row) - 1 for row in rows)
        self.tokens_per_byte = told / max(1, num_bytes)
        self.windows = _cuts([len(row) for row in rows], length, overlap)
        if max_windows is not None and max_windows < len(self.windows):
            self.windows = [
                self.windows[n * len(self.windows) // max_windows] for n in range(max_windows)
            ]

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, Any]:
        device = next(model.parameters()).device
        together, total, count = max(1, TOGETHER // self.length), 0.0, 0
        for at in range(0, len(self.windows), together):
            first, known, end = torch.tensor(self.windows[at : at + together]).T
            tokens = _windows(self.row, first, self.length).to(device)
            places = first[:, None] + torch.arange(1, self.length + 1)
            live = ((places >= known[:, None]) & (places < end[:, None])).to(device)
            logits = model(tokens[:, :-1])
            total += float(label_smoothed_cross_entropy(logits, tokens[:, 1:], 0.0, live))
            count += int(live.sum())
        loss = total / count
        bits = loss / math.log(2) * self.tokens_per_byte
        return {"loss": loss, "bits_per_byte": bits, **self.baselines}


def _cuts(lengths: Sequence[int], length: int, overlap: int) -> list[tuple[int, int, int]]:
    """Windows over rows in a row: where each starts, its first token to be told, its row's end.

    >>> _cuts([6], length=4, overlap=2)  # tokens 1 to 4 from what is before them, then 5
    [(0, 1, 6), (2, 5, 6)]
    """
    cuts, before = [], 0
    for size in lengths:
        start = 0
        while start == 0 or start + overlap + 1 < size:
            known = 1 if start == 0 else start + overlap + 1
            cuts.append((before + start, before + known, before + size))
            start += length - overlap
        before += size
    return [cut for cut in cuts if cut[1] < cut[2]]


def _windows(row: Tensor, starts: Tensor, length: int) -> Tensor:
    """Rows of length + 1 tokens; behind the end stands the last token again, which nobody asks."""
    places = starts[:, None] + torch.arange(length + 1)
    return row[places.clamp(max=len(row) - 1)].long()
