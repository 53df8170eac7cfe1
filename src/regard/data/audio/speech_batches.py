"""Augmented training batches of your own recordings."""

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.audio.audio_batches import AudioBatches, ctc_batch
from regard.data.audio.augmentation import SpeechAugmentation, augment_speech
from regard.data.audio.peak_normalization import normalize_recordings
from regard.data.audio.resampler import Resampler
from regard.data.audio.speech_manifest import ManifestEntry, SpeechManifest
from regard.data.batches import Batch, Shard
from regard.data.generated_batches import seeded_generator
from regard.data.text.tokenizers import Tokenizer
from regard.errors import FileError

MAX_SNR = 40.0  # dB
CLEAN_FRACTION = 0.25  # of recordings without added noise


class RecordingPlan(NamedTuple):
    """A recording, its speed factor and its signal-to-noise ratio in dB."""

    entry: ManifestEntry
    speed: float
    snr: float


def speech_batches(
    source: SpeechManifest,
    tokenizer: Tokenizer,
    *,
    mels: int,
    batch_size: int,
    augmentation: SpeechAugmentation | None = None,
    speeds: Sequence[float] = (1.0,),
    min_snr: float | None = None,
    dither: float = 0.0,
    second_view: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
    **shard: Unpack[Shard],
) -> AudioBatches:
    """CTC training batches of recordings with speed perturbation, noise and augmentation.

    A recording gets one of `speeds` (Ko et al. 2015; pitch changes with it) and, in 75% of the
    cases, white noise at an SNR of `min_snr` to 40 dB. `dither` is 0 for a model with online CMVN.
    `second_view` adds `frames_again`, the same recordings with another augmentation, for R-Drop.
    """
    source = source.alignable(tokenizer, max(speeds))
    if not source.entries["train"]:
        raise FileError(
            f"manifest: needs recordings to train on, got none: {source.report.summary}"
        )

    def draw_plan(number: int) -> RecordingPlan:
        rng = Random(f"train/{seed}/{number}")
        speed, snr = rng.choice(speeds), math.inf
        if min_snr is not None and rng.random() >= CLEAN_FRACTION:
            snr = rng.uniform(min_snr, MAX_SNR)
        return RecordingPlan(source.shuffled_entry(number, seed), speed, snr)

    def render(plans: Sequence[RecordingPlan], number: int) -> Batch:
        cpu_generator = seeded_generator(seed, "voice", number)
        generator = seeded_generator(seed, "noise", number, device=device)
        rows = [_change_speed(source.read(p.entry).wave, p.speed, source.rate) for p in plans]
        waves = pad_sequence(rows, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows])
        if min_snr is not None:
            waves = _add_noise(waves, lengths, [plan.snr for plan in plans], generator)
        waves, lengths = normalize_recordings(waves, lengths, source.rate, generator, dither=dither)
        texts = [plan.entry.text for plan in plans]
        batch = ctc_batch(waves, lengths, texts, tokenizer, source.rate, mels)
        if augmentation is not None:
            frames = batch["frames"]
            for name in ("frames", "frames_again") if second_view else ("frames",):
                batch[name] = augment_speech(frames, augmentation, cpu_generator, generator)
        return batch

    return AudioBatches(
        draw_plan, lambda plan: plan.entry.seconds / plan.speed, render,
        batch_size=batch_size, seed=seed, **shard,
    )  # fmt: skip


def _change_speed(wave: Tensor, speed: float, rate: int) -> Tensor:
    """Resample so that the recording is `speed` times as fast."""
    if speed == 1:
        return wave
    resample = Resampler(round(rate * speed), rate)
    return torch.cat([resample(wave), resample.finish()])


def _add_noise(
    waves: Tensor, lengths: Tensor, snrs: Sequence[float], generator: torch.Generator
) -> Tensor:
    """White noise at the SNR of each recording; the padding stays zero."""
    valid = torch.arange(waves.shape[1], device=waves.device) < lengths.to(waves.device)[:, None]
    power = waves.square().sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)
    ratio = torch.tensor([[10 ** (-snr / 20)] for snr in snrs]).to(waves)
    noise = torch.randn(waves.shape, generator=generator, device=waves.device)
    return (waves + power.sqrt() * ratio * noise) * valid
