"""Sound in, text out, while it is being said; and how sure the text is."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import PeakNormalizer, Tokenizer
from regard.data.audio.peak_normalization import DITHER, end_padding
from regard.decode.search.ctc import BestPath, PathScore, PrefixBeam
from regard.decode.streaming.audio_stream import AudioStream
from regard.errors import ConfigError
from regard.models import RecogniserConfig
from regard.ops import log_mel

MAX_TOKENS_PER_CHARACTER = 4  # tokens that one character may be spread over: the bytes of UTF-8
WARMUP_SECONDS = 30.0  # seconds of a recording that the running normalisation is warmed up on


class Transcriber:
    """One stream of sound as text: each call takes more samples and gives the text that is new.

    Samples are normalised by `PeakNormalizer`: live by the running peak, and a recording, of which
    `prepare` has seen all samples before, by its own peak. `finish` adds a second of silence, so
    that a sound which ends on its last syllable is heard to the end. With level=False samples go
    to the model as they are.

    With a `search` it is that beam's text, as far as all of it agrees, and `maybe` what the best of
    it says beyond; without, each label as soon as it is heard. After `finish`, `score` is that of
    `PathScore`: what a run's calibration makes into a confidence.

    >>> tokenizer = rg.data.Characters.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> transcriber, wave = Transcriber(model, tokenizer), torch.zeros(8000)
    >>> transcriber.prepare([wave])
    >>> text = "".join(transcriber.push(piece) for piece in wave.split(800)) + transcriber.finish()
    >>> sound = rg.data.AudioExample(wave, "", 8000)
    >>> text == rg.train.transcribe(model, tokenizer, [sound])[0]
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
        self.score = 0.0
        self._restart()

    def _restart(self) -> None:
        dither = select_dither(self.stream.config)
        self.peak_normalizer = (
            PeakNormalizer(self.sample_rate, dither=dither) if self.normalizes_peak else None
        )
        self.state, self.path, self.pending_labels = self.stream.start(), BestPath(), list[int]()
        self.path_score, self.labels, self.has_begun = PathScore(), 0, False

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        return self.stream.config.sample_rate

    @property
    def delay(self) -> float:
        """Seconds of live sound that have to follow before an output can come."""
        return self.stream.config.delay + (
            self.peak_normalizer.delay if self.peak_normalizer else 0.0
        )

    @property
    def partial_text(self) -> str:
        """What may follow but is not decided yet."""
        more = [] if self.search is None else self.search.unstable_labels()
        return self._trimmed(self.tokenizer.decode([*self.pending_labels, *more]))

    def prepare(self, pieces: Iterable[Float[Tensor, " sample"]]) -> None:
        """The first pass over a recording: its peak, and means to start the normalisation from."""
        first, room = list[Tensor](), round(WARMUP_SECONDS * self.sample_rate)

        def kept() -> Iterable[Tensor]:
            nonlocal room
            for piece in pieces:
                if room > 0:
                    first.append(piece[:room])
                    room -= len(piece)
                yield piece

        dither = select_dither(self.stream.config)
        level = PeakNormalizer.from_recording(self.sample_rate, kept(), dither=dither)
        if not self.normalizes_peak:
            return
        self.peak_normalizer = level
        if self.stream.config.cmvn_depth is not None and first:
            warm = PeakNormalizer(self.sample_rate, peak=level.peak, mean=level.mean, dither=dither)
            before = warm_start_cmvn(self.stream.model, warm(torch.cat(first)))
            self.state = self.stream.start(before)

    def push(self, samples: Float[Tensor, " sample"]) -> str:
        """The text that these samples add."""
        return self._heard(
            samples if self.peak_normalizer is None else self.peak_normalizer(samples)
        )

    def _heard(self, samples: Tensor) -> str:
        log_probs, self.state = self.stream.step(samples, self.state)
        return self._spell(self._labels(log_probs))

    def finish(self) -> str:
        """The text that the end adds; then it is ready for another stream."""
        text = self._heard(end_padding(self.peak_normalizer, self.sample_rate))
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
        """The text of all labels but those of a character that is not whole yet."""
        waiting = [*self.pending_labels, *labels]
        for back in range(min(MAX_TOKENS_PER_CHARACTER, len(waiting)) + 1):
            text = self.tokenizer.decode(waiting[: len(waiting) - back])
            if not text.endswith("�"):
                break
        else:  # it never will be
            text, back = self.tokenizer.decode(waiting), 0
        self.pending_labels = waiting[len(waiting) - back :]
        text = self._trimmed(text)
        self.has_begun = self.has_begun or bool(text)
        return text

    def _trimmed(self, text: str) -> str:
        """Without the space that a model may hear before the first word."""
        return text if self.has_begun else text.lstrip()


def select_dither(config: RecogniserConfig) -> float:
    """How much noise `PeakNormalizer` adds for a model: none where its own features have a floor."""
    return DITHER if config.cmvn_depth is None else 0.0


def warm_start_cmvn(
    model: nn.Module, samples: Float[Tensor, " sample"]
) -> Float[Tensor, "one state"] | None:
    """The state of a model's running normalisation that the beginning of a recording leaves.

    It is read backwards, so that what is nearest to the first sample counts most.

    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=9, cmvn_depth=8.0))
    >>> warm_start_cmvn(model, torch.randn(8000)).shape  # a level, a weight, and 40 sums
    torch.Size([1, 42])
    """
    frames = log_mel(samples, model.config.sample_rate, n_mels=model.config.n_mels)  # type: ignore[attr-defined]
    frames = frames.to(model.standardise.mean)  # type: ignore[attr-defined]
    return model.normalize_features(frames.flip(0)[None])[1]  # type: ignore[operator]
