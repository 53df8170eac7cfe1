"""Batches of audio, rendered on the device of the model from plans."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.batches import Batch, Shard, collate
from regard.data.generated_batches import GeneratedBatches
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError
from regard.ops import log_mel, mel_frame_count

SORT_WINDOW = 16  # batches whose examples are sorted by length together


class AudioBatches(GeneratedBatches):
    """Length-bucketed batches, rendered from plans that are cheap to draw and to sort.

    Args:
        draw_plan: the plan of example number n.
        plan_length: length of a plan, in any unit.
        render: computes the batch of a list of plans, given its number.
        batch_size: examples per batch.
        seed: order of the batches.
        shard: `rank` and `world_size` of the process.

    >>> batches = AudioBatches(float, lambda plan: plan, lambda plans, number: {
    ...     "x": torch.tensor(plans)}, batch_size=2)
    >>> next(iter(batches))["x"].diff()  # neighbours in length
    tensor([1.])
    """

    def __init__(
        self,
        draw_plan: Callable[[int], Any],
        plan_length: Callable[[Any], float],
        render: Callable[[Sequence[Any], int], Batch],
        *,
        batch_size: int,
        seed: int = 0,
        **shard: Unpack[Shard],
    ):
        if batch_size < 1:
            raise ConfigError(f"batch_size: needs 1 or more, got {batch_size}")
        super().__init__(self._batch, seed=seed, **shard)
        self.draw_plan, self.plan_length, self.render = draw_plan, plan_length, render
        self.batch_size = batch_size
        self._window = lru_cache(2)(self._plan_window)

    def _batch(self, number: int) -> Batch:
        window, index = divmod(number, SORT_WINDOW)
        return self.render(self._window(window)[index], number)

    def _plan_window(self, window: int) -> list[list[Any]]:
        first = window * SORT_WINDOW * self.batch_size
        plans = [self.draw_plan(first + n) for n in range(SORT_WINDOW * self.batch_size)]
        plans.sort(key=self.plan_length)
        batches = [plans[at : at + self.batch_size] for at in range(0, len(plans), self.batch_size)]
        Random(f"{self.seed}/{window}").shuffle(batches)
        return batches


def ctc_batch(
    waves: Float[Tensor, "batch sample"],
    lengths: Int[Tensor, " batch"],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    rate: int,
    mels: int,
) -> Batch:
    """A batch for CTC training: log-mel frames and labels, with their lengths."""
    frames = log_mel(waves, rate, n_mels=mels)
    counts = torch.tensor([mel_frame_count(n, rate) for n in lengths.tolist()])
    labels = label_batch(texts, tokenizer, frames.device)
    return {"frames": frames, "frames_lengths": counts.to(frames.device), **labels}


def label_batch(
    texts: Sequence[str], tokenizer: Tokenizer, device: torch.device | str = "cpu"
) -> Batch:
    """Padded labels of texts, with their lengths."""
    # as tensors: an empty list has no dtype
    labels = (torch.tensor(tokenizer.encode_input(text), dtype=torch.long) for text in texts)
    batch = collate([{"target": row} for row in labels], tokenizer.pad_id)
    return {name: x.to(device) for name, x in batch.items()}
