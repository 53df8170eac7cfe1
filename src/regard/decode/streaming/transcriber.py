"""Streaming transcription: audio pieces to text, with a confidence score."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import PeakNormalizer, Tokenizer
from regard.data.audio.peak_normalization import DITHER, end_padding
from regard.decode.search.ctc import BestPath, PathScore, PrefixBeam
from regard.decode.streaming.audio_stream import AudioStream
from regard.errors import ConfigError
from regard.models import Recogniser, RecogniserConfig
from regard.ops import log_mel

MAX_TOKENS_PER_CHARACTER = 4  # of byte tokenizers: UTF-8
WARMUP_SECONDS = 30.0  # of a recording that initialise the running normalization


class Transcriber:
    """Streaming transcriber: `push` takes samples and returns new text.

    Samples are normalized by `PeakNormalizer`: by the running peak, or, after `prepare` has seen
    the whole recording, by its own. `finish` adds a second of silence for the last label. After it,
    `score` is that of `PathScore`, which a run's calibration turns into a confidence.

    Args:
        model: A Recogniser in evaluation mode.
        tokenizer: Turns labels into text.
        search: Prefix beam; text is returned once all its prefixes agree, `partial_text` has the
            rest. Without it, best-path labels are returned at once.
        left_chunks: Left context of a model trained without a bound.
        normalize_peak: Whether to normalize samples.

    >>> tokenizer = rg.data.CharTokenizer.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> transcriber, wave = Transcriber(model, tokenizer), torch.zeros(8000)
    >>> transcriber.prepare([wave])
    >>> text = "".join(transcriber.push(piece) for piece in wave.split(800)) + transcriber.finish()
    >>> sound = rg.data.AudioExample(wave, "", 8000)
    >>> text == rg.tasks.transcribe_batch(model, tokenizer, [sound])[0]
    True
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        search: PrefixBeam | None = None,
        left_chunks: int | None = None,
        normalize_peak: bool = True,
    ):
        self.stream = AudioStream(model, left_chunks=left_chunks)
        if self.stream.config.vocab != tokenizer.vocab:
            raise ConfigError(
                f"tokenizer: needs the model's vocab={self.stream.config.vocab}, "
                f"got {tokenizer.vocab}"
            )
        self.tokenizer, self.search, self.normalizes_peak = tokenizer, search, normalize_peak
        self.score, self.dither = 0.0, select_dither(self.stream.config)
        self._restart()

    def _restart(self) -> None:
        self.peak_normalizer: PeakNormalizer | None = None
        if self.normalizes_peak:
            self.peak_normalizer = PeakNormalizer(self.sample_rate, dither=self.dither)
        self.state, self.path, self.pending_labels = self.stream.start(), BestPath(), list[int]()
        self.path_score, self.labels, self.has_begun = PathScore(), 0, False

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return self.stream.config.sample_rate

    @property
    def delay(self) -> float:
        """Latency of a live stream in seconds."""
        own = self.peak_normalizer.delay if self.peak_normalizer else 0.0
        return self.stream.config.delay + own

    @property
    def partial_text(self) -> str:
        """Text that may still change."""
        more = [] if self.search is None else self.search.unstable_labels()
        return self._trimmed(self.tokenizer.decode([*self.pending_labels, *more]))

    def prepare(self, pieces: Iterable[Float[Tensor, " _"]]) -> None:
        """First pass over a recording: measures its peak and initialises the normalization."""
        first, budget = list[Tensor](), round(WARMUP_SECONDS * self.sample_rate)

        def take_head() -> Iterable[Tensor]:
            nonlocal budget
            for piece in pieces:
                if budget > 0:
                    first.append(piece[:budget])
                    budget -= len(piece)
                yield piece

        dither, rate = self.dither, self.sample_rate
        level = PeakNormalizer.from_recording(rate, take_head(), dither=dither)
        if not self.normalizes_peak:
            return
        self.peak_normalizer = level
        if self.stream.config.cmvn_depth is not None and first:
            warm = PeakNormalizer(rate, peak=level.peak, mean=level.mean, dither=dither)
            head = warm(torch.cat(first))
            self.state = self.stream.start(warm_start_cmvn(self.stream.model, head))

    def push(self, samples: Float[Tensor, " sample"]) -> str:
        """New text after these samples."""
        if self.peak_normalizer is not None:
            samples = self.peak_normalizer(samples)
        return self._transcribe(samples)

    def _transcribe(self, samples: Tensor) -> str:
        log_probs, self.state = self.stream.step(samples, self.state)
        return self._spell(self._labels(log_probs))

    def finish(self) -> str:
        """New text at the end of the stream; then a new stream can start."""
        text = self._transcribe(end_padding(self.peak_normalizer, self.sample_rate))
        labels = self._labels(self.stream.finish(self.state))
        if self.search is not None:
            rest = self.search.unstable_labels()
            labels, self.labels = [*labels, *rest], self.labels + len(rest)
            self.search.reset()
        text += self._spell(labels)
        text = (text + self._trimmed(self.tokenizer.decode(self.pending_labels))).rstrip()
        self.score = self.path_score.per_label(self.labels)
        self._restart()
        return text

    def _labels(self, log_probs: Tensor) -> list[int]:
        self.path_score(log_probs)
        if self.search is None:
            labels = self.path(log_probs)
        else:
            self.search(log_probs)
            labels = self.search.pop_stable_labels()
        self.labels += len(labels)
        return labels

    def _spell(self, labels: list[int]) -> str:
        """Text of the labels; those of an incomplete character stay pending."""
        waiting = [*self.pending_labels, *labels]
        for back in range(min(MAX_TOKENS_PER_CHARACTER, len(waiting)) + 1):
            text = self.tokenizer.decode(waiting[: len(waiting) - back])
            if not text.endswith("�"):
                break
        else:  # not a character
            text, back = self.tokenizer.decode(waiting), 0
        self.pending_labels = waiting[len(waiting) - back :]
        text = self._trimmed(text)
        self.has_begun = self.has_begun or bool(text)
        return text

    def _trimmed(self, text: str) -> str:
        """Text without spaces before the first word."""
        return text if self.has_begun else text.lstrip()


def select_dither(config: RecogniserConfig) -> float:
    """Dither of `PeakNormalizer` for a model: none with CMVN, whose features have a floor."""
    return DITHER if config.cmvn_depth is None else 0.0


def warm_start_cmvn(
    model: Recogniser, samples: Float[Tensor, " sample"]
) -> Float[Tensor, "one state"] | None:
    """Initial CMVN state from the first samples of a recording.

    They are processed backwards, so that those nearest to the start count most.
    """
    frames = log_mel(samples, model.config.sample_rate, n_mels=model.config.n_mels)
    frames = frames.to(model.standardise.mean)
    return model.normalize_features(frames.flip(0)[None])[1]
