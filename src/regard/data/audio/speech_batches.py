"""Augmented training batches of the user's recordings, from log-mel frames computed once."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.audio.audio_file import Resampler
from regard.data.audio.augmentation import LOG_MEL_FLOOR, SpeechAugmentation, augment_speech
from regard.data.audio.peak_normalization import PAD_SECONDS, normalize_recording
from regard.data.audio.speech_manifest import ManifestEntry, SpeechManifest
from regard.data.batches import Batch, GeneratedBatches, Shard, collate, seeded_generator
from regard.data.text.tokenizers import Tokenizer
from regard.data.token_cache import TokenCache, cached_examples
from regard.errors import ConfigError, FileError
from regard.ops import frame_sizes, log_mel, mel_filters, mel_frame_count

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


MAX_SNR = 40.0  # dB
CLEAN_FRACTION = 0.25  # of recordings without added noise
NOISE_FRAMES = 4096  # 41 seconds of white noise, repeated from a random frame on
PARTIAL_FRAMES = 2  # that begin in the recording and end in the padding


class RecordingPlan(NamedTuple):
    """A recording, its speed factor, its row in the cache and its signal-to-noise ratio in dB."""

    entry: ManifestEntry
    speed: float
    row: int
    snr: float


def speech_batches(
    source: SpeechManifest, tokenizer: Tokenizer, *, mels: int, batch_size: int,
    frames: TokenCache | None = None, augmentation: SpeechAugmentation | None = None,
    speeds: Sequence[float] = (1.0,), min_snr: float | None = None, dither: float = 0.0,
    second_view: bool = False, device: torch.device | str = "cpu", seed: int = 0,
    **shard: Unpack[Shard],
) -> AudioBatches:  # fmt: skip
    """CTC training batches of recordings with speed perturbation, noise and augmentation.

    A recording gets one of `speeds` (Ko et al. 2015; pitch changes with it) and, in 75% of the
    cases, white noise at an SNR of `min_snr` to 40 dB. `dither` is 0 for a model with online CMVN.
    `second_view` adds `frames_again`, the same recordings with another augmentation, for R-Drop.
    `frames` is a cache of `speech_frames`, of recordings that are `alignable`.
    """
    source = source.alignable(tokenizer, max(speeds))
    entries = source.entries["train"]
    if not entries:
        raise FileError(
            f"manifest: needs recordings to train on, got none: {source.report.summary}"
        )
    if frames is None:
        frames = cached_examples(None, speech_frames(source, mels, speeds), vocab=1 << 16, key="")
    cache, noise = frames, _white_noise(source.rate, mels).to(device)

    def draw_plan(number: int) -> RecordingPlan:
        rng = Random(f"train/{seed}/{number}")
        choice, snr = rng.randrange(len(speeds)), math.inf
        if min_snr is not None and rng.random() >= CLEAN_FRACTION:
            snr = rng.uniform(min_snr, MAX_SNR)
        index = source.shuffled_index(number, seed)
        return RecordingPlan(entries[index], speeds[choice], index * len(speeds) + choice, snr)

    def render(plans: Sequence[RecordingPlan], number: int) -> Batch:
        cpu_generator = seeded_generator(seed, "voice", number)
        generator = seeded_generator(seed, "noise", number, device=device)
        bits = (cache[plan.row]["frames"].astype(np.uint16) for plan in plans)
        rows = [torch.from_numpy(row.view(np.float16)).view(-1, mels) for row in bits]
        counts = torch.tensor([len(row) - PARTIAL_FRAMES for row in rows])
        lengths = counts + round(PAD_SECONDS * source.rate) // frame_sizes(source.rate)[1]
        x = torch.full((len(rows), int(lengths.max()), mels), LOG_MEL_FLOOR)
        for padded, row in zip(x, rows, strict=True):
            padded[: len(row)] = row
        x = x.to(device).clamp_(min=LOG_MEL_FLOOR)  # float16 rounds silence down
        if min_snr is not None or dither:
            snrs = [plan.snr for plan in plans]
            x = _add_noise(x, counts.to(device)[:, None], snrs, dither, noise, cpu_generator)
        batch = {"frames": x, "frames_lengths": lengths.to(device)}
        batch |= label_batch([plan.entry.text for plan in plans], tokenizer, device)
        if augmentation is not None:
            for name in ("frames", "frames_again") if second_view else ("frames",):
                batch[name] = augment_speech(x, augmentation, cpu_generator, generator)
        return batch

    return AudioBatches(
        draw_plan, lambda plan: plan.entry.seconds / plan.speed, render,
        batch_size=batch_size, seed=seed, **shard,
    )  # fmt: skip


def speech_frames(
    source: SpeechManifest, mels: int, speeds: Sequence[float]
) -> Iterator[dict[str, np.ndarray]]:
    """Log-mel frames of each training recording at each speed, for a token cache.

    They are float16, stored as the integers of the same bits. The padding is left out but for the
    `PARTIAL_FRAMES` that the recording ends in.
    """
    for entry in source.entries["train"]:
        original = source.read(entry).wave
        for speed in speeds:
            wave = original
            if speed != 1:  # resampled, so that the recording is that much faster
                resample = Resampler(round(source.rate * speed), source.rate)
                wave = torch.cat([resample(original), resample.finish()])
            x = log_mel(
                normalize_recording(wave, source.rate, dither=0.0), source.rate, n_mels=mels
            )
            x = x[: mel_frame_count(len(wave), source.rate) + PARTIAL_FRAMES]
            yield {"frames": x.half().flatten().numpy().view(np.uint16)}


@lru_cache(2)
def _white_noise(rate: int, mels: int) -> Tensor:
    """Frames of white noise of variance 1: mel powers N, then Q of `_add_noise`."""
    window, hop = frame_sizes(rate)
    samples = window + (NOISE_FRAMES - 1) * hop
    wave = torch.randn(samples, generator=seeded_generator("white noise"))
    n_fft = 1 << (window - 1).bit_length()
    spectrum = torch.fft.rfft(wave.unfold(0, window, hop) * torch.hann_window(window), n_fft)
    # phases relative to the middle of the window, where those of neighbours are alike
    middle = torch.arange(n_fft // 2 + 1) * (math.pi * (window - 1) / n_fft)
    aligned = (spectrum * torch.polar(torch.ones(len(middle)), middle)).real
    filters = mel_filters(mels, rate, n_fft).float().mT
    power = spectrum.abs().square() @ filters
    return torch.cat([power, aligned @ filters / filters.sum(0).sqrt()], dim=1)


def _add_noise(
    x: Tensor, counts: Tensor, snrs: Sequence[float], dither: float, noise: Tensor,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """White noise at the SNR of each recording, but not in its padding, and dither.

    exp y = S + σ² N + 2 σ √S Q,   S = exp x,   Q = Σ_f filter[f] Re noise[f] / √Σ_f filter[f]

    This is the log-mel of the sum of both waves, if the spectrum is flat within a band.
    """
    mels, time = x.shape[2], torch.arange(x.shape[1])
    root = (x / 2).exp_()
    # a sum over bands is a power of the wave: filters of neighbouring bands add up to 1
    signal = root.square().sum((1, 2))[:, None] / counts.clamp(min=1)
    ratio = torch.tensor([[10 ** (-snr / 10)] for snr in snrs]).to(x)
    inside = ((counts + 1.5 - time.to(x.device)) / 2.5).clamp(0, 1)  # share of a window: 2.5 hops
    variance = signal / noise[:, :mels].sum(1).mean() * ratio * inside + dither**2
    first = torch.randint(NOISE_FRAMES, (len(x), 1), generator=generator)
    rows = F.embedding(((first + time) % NOISE_FRAMES).to(x.device), noise)
    sigma = variance.sqrt()[..., None]
    # (√S + 2 σ Q) √S + σ² N; what rounding makes negative is silence
    power = root.addcmul(rows[..., mels:], 2 * sigma).mul_(root)
    return power.addcmul_(rows[..., :mels], sigma.square()).clamp_(min=1e-10).log_()
