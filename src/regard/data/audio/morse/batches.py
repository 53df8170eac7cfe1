"""Training batches of Morse code, rendered on the device of the model."""

from collections.abc import Sequence
from typing import Unpack

import torch

from regard.data.audio.audio_batches import AudioBatches, ctc_batch
from regard.data.audio.morse.channel import render_keyings
from regard.data.audio.morse.keying import Keying
from regard.data.audio.morse.source import Morse
from regard.data.audio.peak_normalization import normalize_recordings
from regard.data.batches import Batch, Shard
from regard.data.generated_batches import seeded_generator
from regard.data.text.tokenizers import Tokenizer


def morse_batches(
    source: Morse,
    tokenizer: Tokenizer,
    *,
    mels: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
    **shard: Unpack[Shard],
) -> AudioBatches:
    """Training batches of Morse code: tone, noise and log-mel of a batch, computed on a device.

    Waves are normalised, padded and dithered as for inference (`normalize_recording`).

    Args:
        source: speeds, pitches and channel effects.
        tokenizer: of the labels.
        mels: log-mel bands.
        batch_size: recordings per batch.
        device: where to compute.
        seed: of texts and noise.
        shard: `rank` and `world_size` of the process.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> source = Morse(letters=(1, 1), alphabet="ET")
    >>> batch = next(iter(morse_batches(source, tokenizer, mels=8, batch_size=2)))
    >>> batch["frames"].shape[2], batch["target"].shape
    (8, torch.Size([2, 1]))
    """

    def render(plans: Sequence[Keying], number: int) -> Batch:
        generator = seeded_generator(seed, "noise", number, device=device)
        waves, lengths = render_keyings(plans, source.rate, generator)
        below_peak = torch.tensor([plan.channel.below_peak for plan in plans], device=device)
        waves, lengths = normalize_recordings(
            waves, lengths, source.rate, generator, gain=10 ** (-below_peak / 20)
        )
        return ctc_batch(waves, lengths, [p.text for p in plans], tokenizer, source.rate, mels)

    return AudioBatches(
        lambda number: source.draw_keying(f"train/{seed}/{number}"), lambda plan: plan.seconds,
        render, batch_size=batch_size, seed=seed, **shard,
    )  # fmt: skip
