"""Training batches of Morse code, rendered on the device of the model."""

from collections.abc import Sequence

import torch

from regard.data.audio.audio_batches import AudioBatches, ctc_batch
from regard.data.audio.morse.channel import render_keyings
from regard.data.audio.morse.keying import Keying
from regard.data.audio.morse.source import Morse
from regard.data.audio.peak_normalization import normalize_recordings
from regard.data.generated_batches import Batch, seeded_generator
from regard.data.text.tokenizers import Tokenizer


def morse_batches(
    source: Morse,
    tokenizer: Tokenizer,
    *,
    mels: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> AudioBatches:
    """The train part of Morse code, made on a device: noise, tone and log-mel of a batch at once.

    The waves are normalised, padded and dithered as `PeakNormalizer` does it where the model runs.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> source = Morse(letters=(1, 1), alphabet="ET")
    >>> batch = next(iter(morse_batches(source, tokenizer, mels=8, batch_size=2)))
    >>> batch["frames"].shape[2], batch["target"].shape
    (8, torch.Size([2, 1]))
    """

    def render(plans: Sequence[Keying], number: int) -> Batch:
        generator = seeded_generator(seed, "noise", number, device=device)
        waves, lengths = render_keyings(plans, source.rate, generator)
        under = torch.tensor([plan.channel.below_peak for plan in plans], device=device)
        waves, lengths = normalize_recordings(
            waves, lengths, source.rate, generator, gain=10 ** (-under / 20)
        )
        return ctc_batch(waves, lengths, [p.text for p in plans], tokenizer, source.rate, mels)

    return AudioBatches(
        lambda number: source.draw_keying(f"train/{seed}/{number}"), lambda plan: plan.seconds, render,
        batch_size=batch_size, seed=seed, rank=rank, world_size=world_size,
    )  # fmt: skip
