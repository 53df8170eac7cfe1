"""Transcribe recordings in batches with a CTC recogniser."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data import AudioExample, Resampler, Tokenizer, collate
from regard.data.audio.peak_normalization import normalize_recording
from regard.data.audio.speech_batches import label_batch
from regard.data.batches import Batch, batch_by_length
from regard.decode import BestPath, PathScore
from regard.decode.streaming import WARMUP_SECONDS, select_dither, warm_start_cmvn
from regard.models import Recogniser, WordRecogniser
from regard.ops import log_mel
from regard.ops.maybe_none import MaybeNone

BATCH_SIZE = 50  # recordings per forward pass


class Transcript(NamedTuple):
    """A transcript with its raw score and, for a calibrated run, its confidence.

    `warning` says why it may be wrong: low confidence, a recording unlike those of the training.
    """

    text: str
    score: float  # of `decode.PathScore`
    confidence: float | MaybeNone = None
    warning: str = ""
    notes: tuple[str, ...] = ()  # such as "resampled from …"
    is_complete: bool = True  # False if the file is damaged or truncated


def transcribe_batch(
    model: Recogniser | WordRecogniser, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> list[str]:
    """Transcripts of recordings; the same text as `regard transcribe`, in batches.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> len(transcribe_batch(model, tokenizer, [AudioExample(torch.zeros(8000), "", 8000)]))
    1
    """
    return [transcript.text for transcript in transcribe_batch_detailed(model, tokenizer, audio)]


@torch.no_grad()
def transcribe_batch_detailed(
    model: Recogniser | WordRecogniser, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> list[Transcript]:
    """Transcripts of recordings, with scores."""
    transcripts: dict[int, Transcript] = {}
    for indices, batch in feature_batches(model, tokenizer, audio):
        log_probs, lengths = model(
            batch["frames"], batch["frames_lengths"], cmvn_state=batch.get("before")
        )
        for n, row, length in zip(indices, log_probs, lengths.tolist(), strict=True):
            labels, score = BestPath()(row[:length]), PathScore()
            score(row[:length])
            text = tokenizer.decode(labels).strip()
            transcripts[n] = Transcript(text, score.per_label(len(labels)))
    return [transcripts[n] for n in range(len(audio))]


def feature_batches(
    model: Recogniser | WordRecogniser, tokenizer: Tokenizer, audio: Sequence[AudioExample]
) -> Iterator[tuple[list[int], Batch]]:
    """Batches for CTC on the device of the model, sorted by length, with their indices."""
    device = next(model.parameters()).device
    seconds = [len(example.wave) * 8000 // example.rate for example in audio]
    for indices in batch_by_length(seconds, BATCH_SIZE):
        prepared = [_prepare(model, audio[n]) for n in indices]
        batch = collate([{"frames": frames} for frames, _ in prepared])
        batch |= label_batch([audio[n].text for n in indices], tokenizer)
        states = [state for _, state in prepared if state is not None]
        if states:
            batch["before"] = torch.cat(states)
        yield indices, {name: x.to(device) for name, x in batch.items()}


def _prepare(
    model: Recogniser | WordRecogniser, example: AudioExample
) -> tuple[Tensor, Tensor | None]:
    """Frames of a recording as a `Transcriber` computes them, and the initial CMVN state."""
    config = model.config
    rate, wave = config.sample_rate, example.wave.float().cpu()
    if example.rate != rate:
        resample = Resampler(example.rate, rate)
        wave = torch.cat([resample(wave), resample.finish()])
    samples = normalize_recording(wave, rate, dither=select_dither(config))
    state = None
    if config.cmvn_depth is not None:
        state = warm_start_cmvn(model, samples[: min(len(wave), round(WARMUP_SECONDS * rate))])
    return log_mel(samples, rate, n_mels=config.n_mels), state
