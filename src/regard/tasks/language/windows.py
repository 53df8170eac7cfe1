"""Windows of a long token sequence: training batches, and evaluation over every token."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data.source import permute_index
from regard.data.token_cache import TokenRow
from regard.errors import ConfigError, FileError
from regard.train.metrics import Tally

TOKENS_PER_CALL = 1 << 14  # of the evaluation
MIX_ITERATIONS = 50


class WindowBatches:
    """Shuffled windows of a token sequence, each with the token after it.

    Every epoch cuts the windows at another offset. All ranks share one sequence of batches and take
    turns, so that the order does not depend on the world size. A window has `length` tokens, a
    batch `rows` windows.

    >>> batches = WindowBatches(torch.arange(100), length=4, rows=2)
    >>> next(iter(batches))["tokens"].diff().unique()  # neighbours stay neighbours
    tensor([1])
    >>> batches.state()["position"]
    1
    """

    def __init__(
        self,
        row: Int[Tensor, " time"] | TokenRow,
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
        self.windows_per_epoch = (len(row) - 1) // length - 1  # one less: the offset varies

    def state(self) -> dict[str, int]:
        """The position, in batches of all ranks together, and the settings it depends on."""
        return {
            "seed": self.seed,
            "length": self.length,
            "rows": self.rows,
            "position": self.position,
        }

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a state."""
        if set(state) != {"seed", "length", "rows", "position"}:
            raise FileError(f"{state}: needs length, position, rows, seed of WindowBatches.state()")
        for name, value in (("length", self.length), ("rows", self.rows)):
            if state[name] != value:
                raise ConfigError(f"{name}: needs to be {state[name]} as in the state, got {value}")
        self.seed, self.position = state["seed"], state["position"]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            first = (self.position + self.rank) * self.rows
            starts = [self._start(n) for n in range(first, first + self.rows)]
            windows = [np.asarray(self.row[at : at + self.length + 1]) for at in starts]
            self.position += self.world_size
            yield {"tokens": torch.from_numpy(np.stack(windows).astype("int64"))}

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.windows_per_epoch)
        offset = permute_index(epoch % self.length, self.length, f"{self.seed}/shift")
        window = permute_index(index, self.windows_per_epoch, f"{self.seed}/{epoch}")
        return offset + self.length * window


class ByteLosses(NamedTuple):
    """What a model over bytes answers to a held-out text: the loss of each byte, in nats."""

    nats: Float[Tensor, " byte"]


class LanguageEvaluator:
    """Loss in nats per token and bits per byte of a language model.

    loss = Σ -log p(token) / tokens,   bits per byte = Σ -log2 p(token) / bytes

    Every token but the first of each row is predicted once, from the tokens of its row in the same
    window.

    Args:
        rows: the tokens of each text.
        num_bytes: of all texts together.
        length: tokens per window.
        overlap: tokens of context that every prediction has at least, where the row has them.
        max_windows: evaluate so many windows, evenly spaced; None is all.
        fits_mix: to fit how n-grams are mixed in, before the scores.
        token_bytes: relative length of each token of the rows in bytes; None is alike.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=256)).eval()
    >>> scores = LanguageEvaluator([torch.arange(100)], 100, length=8)(model)
    >>> round(scores["bits_per_byte"] / scores["loss"] * math.log(2), 2)  # 99 predictions
    0.99
    """

    def __init__(
        self,
        rows: Sequence[Int[Tensor, " _"]],
        num_bytes: int,
        *,
        length: int,
        overlap: int = 0,
        max_windows: int | None = None,
        fits_mix: bool = False,
        token_bytes: Int[Tensor, " token"] | None = None,
    ):
        self.fits_mix = fits_mix
        self.row, self.length = torch.cat(list(rows)), length
        self.windows = windows = _split_windows([len(row) for row in rows], length, overlap)
        sizes = torch.ones(len(self.row)) if token_bytes is None else token_bytes
        sums = torch.cat([torch.zeros(1).double(), sizes.double().cumsum(0)])
        spans = [(target, min(start + length + 1, end)) for start, target, end in windows]
        counts = torch.tensor([[end - start for start, end in spans]]).mT
        weights = torch.stack([sums[end] - sums[start] for start, end in spans])
        self.sizes = torch.cat([counts, weights[:, None] / weights.sum() * num_bytes], 1)
        self.ends = self.sizes[:, 1].cumsum(0)  # of the windows in the text, in bytes
        if max_windows is not None and max_windows < len(windows):
            chosen = [n * len(windows) // max_windows for n in range(max_windows)]
            self.windows = [windows[n] for n in chosen]
            self.sizes, self.ends = self.sizes[chosen], self.ends[chosen]

    def __call__(self, model: Any) -> dict[str, Any]:
        """The scores during a training, which fits how n-grams are mixed in to the valid split."""
        if self.fits_mix and getattr(model, "ngrams", None) is not None:
            self.fit_mix(model)
        return self.tally(self.predict(model)).scores()

    @torch.no_grad()
    def predict(self, model: nn.Module) -> list[float]:
        """The loss of each window, in nats."""
        losses = list[float]()
        for tokens, targets in self._batches(model):
            loss = F.cross_entropy(
                model(tokens).flatten(0, 1).float(), targets.flatten(), reduction="none"
            )
            losses += loss.view_as(targets).sum(1).tolist()
        return losses

    @torch.no_grad()
    def fit_mix(self, model: Any) -> None:
        """Set the weights of network and n-grams in a mixture, by expectation maximisation.

        mix_k ← mean of mix_k p_network / (mix_k p_network + (1 - mix_k) p_n-grams) over the tokens
        whose context is known to k tokens
        """
        rows, known = list[Tensor](), list[Tensor]()
        tables, fitted = model.ngrams.tables, model.ngrams.mix
        fitted.fill_(1.0)
        for tokens, targets in self._batches(model):
            rows.append(torch.stack([
                -F.cross_entropy(one(tokens).mT.double(), targets, reduction="none")[targets >= 0]
                for one in (model, tables)
            ]).exp())  # fmt: skip
            known.append(tables.known(tokens)[targets >= 0])
        both, at = torch.cat(rows, 1), torch.cat(known)
        mix = torch.full_like(fitted, 0.5).double()
        count = at.bincount(minlength=len(mix))
        for _ in range(MIX_ITERATIONS):
            parts = torch.stack([mix[at], 1 - mix[at]]) * both
            sums = mix.new_zeros(len(mix)).index_add(0, at, parts[0] / parts.sum(0))
            mix = (sums + 0.01) / (count + 0.02)  # where no token is known so far: a half
        fitted.copy_(mix)

    def _batches(self, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        """The tokens of windows, and those to predict after each; -100 where there is none."""
        device = next(model.parameters()).device
        step = max(1, TOKENS_PER_CALL // self.length)
        for n in range(0, len(self.windows), step):
            starts, targets, ends = torch.tensor(self.windows[n : n + step]).T
            tokens = _take_windows(self.row, starts, self.length).to(device)
            positions = starts[:, None] + torch.arange(1, self.length + 1)
            mask = ((positions >= targets[:, None]) & (positions < ends[:, None])).to(device)
            yield tokens[:, :-1], tokens[:, 1:].masked_fill(~mask, -100)

    def tally(self, answers: Sequence[float] | ByteLosses) -> Tally:
        """Loss, tokens and bytes of each window, by its loss or those of all bytes of the text."""
        if isinstance(answers, ByteLosses):
            sums = torch.cat([torch.zeros(1).double(), answers.nats.double().cumsum(0)])
            ends = (self.ends / self.ends[-1] * len(answers.nats)).round().long()
            answers = sums[ends].diff(prepend=torch.zeros(1).double()).tolist()
        rows = torch.cat([torch.tensor([list(answers)]).double().mT, self.sizes], 1)

        def score(sums: list[float]) -> dict[str, float]:
            nats, tokens, size = sums
            return {"loss": nats / tokens, "bits_per_byte": nats / math.log(2) / size}

        return Tally(rows, score)


def _split_windows(lengths: Sequence[int], length: int, overlap: int) -> list[tuple[int, int, int]]:
    """Windows over concatenated rows: start, first token to predict, end of the row.

    >>> _split_windows([6], length=4, overlap=2)  # predicts tokens 1 to 4, then 5
    [(0, 1, 6), (2, 5, 6)]
    """
    windows, row_start = [], 0
    for size in lengths:
        start = 0
        while start == 0 or start + overlap + 1 < size:
            target = 1 if start == 0 else start + overlap + 1
            windows.append((row_start + start, row_start + target, row_start + size))
            start += length - overlap
        row_start += size
    return [window for window in windows if window[1] < window[2]]


def _take_windows(row: Tensor, starts: Tensor, length: int) -> Tensor:
    """Windows of length + 1 tokens; past the end the last token repeats, always masked."""
    positions = starts[:, None] + torch.arange(length + 1)
    return row[positions.clamp(max=len(row) - 1)].long()
