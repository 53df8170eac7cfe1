"""Kernel ridge regression on log-mel statistics: spoken words by what a recording sounds like."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.data import AudioExample
from regard.data.audio.peak_normalization import normalize_recording
from regard.ops import log_mel, mel_frame_count

MELS, COEFFICIENTS = 40, 20  # bands, and cepstral coefficients of them
SEGMENTS = 8  # of the sound, from its first to its last loud frame
LOUD = 5.0  # nats below the loudest frame
DYNAMIC_RANGE = 10.0  # nats below the loudest band
RIDGE = 0.1
MAX_RECORDINGS = 6000  # of training: the time is cubic in it


def utterance_features(example: AudioExample) -> Float[Tensor, " feature"]:
    """Mean cepstrum of each of eight segments of the sound, its deviation, and the duration.

    The mean of each band over the sound is subtracted, which takes microphone and room away.
    """
    samples = normalize_recording(example.wave, example.rate, dither=0.0)
    frames = log_mel(samples, example.rate, n_mels=MELS)
    x = frames[: max(1, mel_frame_count(len(example.wave), example.rate))]
    loudness = x.logsumexp(-1)
    loud = (loudness > loudness.max() - LOUD).nonzero()[:, 0]
    x = x[loud[0] : loud[-1] + 1].clamp(min=float(x.max()) - DYNAMIC_RANGE)
    band = (torch.arange(MELS) + 0.5) * torch.pi / MELS
    cosines = torch.cos(band[:, None] * torch.arange(COEFFICIENTS))  # the DCT of type 2
    cepstra = (x - x.mean(0)) @ cosines
    segments = F.adaptive_avg_pool1d(cepstra.mT, SEGMENTS)
    seconds = torch.tensor([len(x) / 100])
    return torch.cat([segments.flatten(), cepstra.std(0, correction=0), seconds])


def fit_speech_kernel(train: Sequence[AudioExample], examples: Sequence[AudioExample]) -> list[str]:
    """The text of each example, one of those of the training recordings.

    k(x, y) = exp(-‖x - y‖² / (2 d)),   a = (K + 0.1 I)⁻¹ Y,   text = argmax_text k(x, ·) a

    x has d standardised features, Y one centred column per text.

    >>> rng = rg.data.seeded_generator(0)
    >>> tones = [torch.sin(torch.arange(4000) * x) + 1e-3 * torch.randn(4000, generator=rng)
    ...          for x in (0.2, 0.4) * 4]
    >>> audio = [AudioExample(x, "ab"[n % 2], 8000) for n, x in enumerate(tones)]
    >>> fit_speech_kernel(audio[:6], audio[6:])
    ['a', 'b']
    """
    train = train[:: -(-len(train) // MAX_RECORDINGS)]
    texts = sorted({example.text for example in train})
    x, y = (torch.stack([utterance_features(a) for a in part]) for part in (train, examples))
    mean, std = x.mean(0), x.std(0, correction=0) + 1e-3
    x, y = (x - mean) / std, (y - mean) / std
    labels = F.one_hot(torch.tensor([texts.index(example.text) for example in train])).float()

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (-torch.cdist(a, b).square() / (2 * x.shape[1])).exp()

    weights = torch.linalg.solve(kernel(x, x) + RIDGE * torch.eye(len(x)), labels - labels.mean(0))
    return [texts[n] for n in (kernel(y, x) @ weights).argmax(-1).tolist()]
