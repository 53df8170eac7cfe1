"""Streaming recognition: audio in pieces to log-probabilities, and to text with a confidence."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import PeakNormalizer, Tokenizer
from regard.data.audio.peak_normalization import DITHER, end_padding
from regard.decode.cache import KVCache
from regard.decode.search.ctc import BestPath, PathScore, PrefixBeam
from regard.errors import ConfigError, ShapeError
from regard.models import Recogniser, RecogniserConfig, WordRecogniser, WordRecogniserConfig
from regard.models.config import check_implemented
from regard.nn import TimeFrequencyConv
from regard.ops import frame_sizes, log_mel, mel_frame_count
from regard.ops.terms import upcast

MAX_BLOCK_OUTPUTS = 64  # outputs computed together, so that long pieces need bounded memory
MAX_TOKENS_PER_CHARACTER = 4  # of byte tokenizers: UTF-8
MAX_UTTERANCE_SECONDS = 60  # of a recording for a model of single words
WARMUP_SECONDS = 30.0  # of a recording that initialise the running normalization


@dataclass(frozen=True)
class AudioStreamState:
    """State of a stream; its size is bounded by the left context.

    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=30, left_chunks=2)).eval()
    >>> state = AudioStream(model).start()
    >>> state.size  # two frames of left padding for each of the two convolutions
    208
    """

    samples: Tensor  # of incomplete frames
    conv_inputs: tuple[Tensor, ...]  # left context of each convolution
    pending: Tensor  # outputs of the convolutions in an incomplete chunk
    cache: KVCache
    cmvn_state: Tensor | None = None  # of a model with online CMVN
    total_outputs: int = 0  # outputs so far: absolute positions

    @property
    def size(self) -> int:
        """Number of values in the state."""
        tensors = [self.samples, *self.conv_inputs, self.pending, *self.cache.storage.layers]
        tensors += [] if self.cmvn_state is None else [self.cmvn_state]
        return sum(x.numel() for x in tensors)


class AudioStream:
    """Streaming inference of a Recogniser, equal to the offline result for any split into pieces.

    log p(label | t) from the samples up to the end of t's chunk

    The model needs a bounded left context; `left_chunks` sets the bound where training had none,
    and the outputs then differ from the offline result.

    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=30)).eval()
    >>> stream, wave = AudioStream(model), torch.randn(8000)
    >>> state, outputs = stream.start(), []
    >>> for piece in wave.split(999):
    ...     log_probs, state = stream.step(piece, state)
    ...     outputs.append(log_probs)
    >>> outputs.append(stream.finish(state))
    >>> torch.allclose(torch.cat(outputs), model.forward_waveform(wave[None])[0][0], atol=1e-5)
    True
    """

    # that a stream computes as the whole recording does
    options = (
        "layers dim heads kv_heads head_dim ffn_dim activation gated norm norm_first "
        "final_norm eps bias qkv_bias out_bias scale softcap sinks rope_theta rotate_half "
        "skip relative_bias buckets max_distance vocab sample_rate n_mels chunk left_chunks "
        "cmvn_depth filters output_norm parallel rope_dim rope_scaling qk_norm"
    )

    def __init__(self, model: nn.Module, *, left_chunks: int | None = None):
        if not isinstance(model, Recogniser):
            raise ConfigError(f"model: needs a Recogniser, got {type(model).__name__}")
        if model.training:
            raise ConfigError("model: needs evaluation mode, got training mode; try model.eval()")
        config = model.config
        check_implemented(config, self.options, "for a stream")
        if config.chunk is None:
            raise ConfigError(
                "chunk: needs a number for a stream, got None: each output attends to the whole "
                "recording; try model.forward_waveform, or training with chunk=16"
            )
        bound = config.left_chunks if left_chunks is None else left_chunks
        if bound is None:
            raise ConfigError(
                "left_chunks: needs a bound for a stream, got None: each output attends to all "
                "before it; try AudioStream(model, left_chunks=64), or training with left_chunks=64"
            )
        if bound < 0 or (config.left_chunks is not None and bound > config.left_chunks):
            most = config.left_chunks
            limit = "more" if most is None else f"up to the model's {most}"
            raise ConfigError(f"left_chunks: needs 0 or {limit}, got {left_chunks}")
        self.model, self.chunk = model, config.chunk
        self.config, self.max_cache_length = replace(config, left_chunks=bound), bound * self.chunk
        # a multiple of the chunk, so that no block ends inside one
        self.block = -(-MAX_BLOCK_OUTPUTS // self.chunk) * self.chunk * model.subsample.factor

    def start(self, cmvn_state: Float[Tensor, "one state"] | None = None) -> AudioStreamState:
        """The initial state; `cmvn_state` is that of the running normalization."""
        like = self.model.standardise.mean
        subsample = self.model.subsample
        channels: list[Any] = [c.in_channels for c in subsample.convolutions]
        return AudioStreamState(
            samples=like.new_zeros(0),
            conv_inputs=tuple(like.new_zeros(1, n, subsample.left) for n in channels),
            pending=like.new_zeros(1, 0, self.config.dim),
            cache=KVCache(max_length=self.max_cache_length),
            cmvn_state=cmvn_state,
        )

    @torch.no_grad()
    def step(
        self, samples: Float[Tensor, " sample"], state: AudioStreamState
    ) -> tuple[Float[Tensor, "time vocab"], AudioStreamState]:
        """Log-probabilities that more samples complete (possibly none), and the next state."""
        rate, outputs = self.config.sample_rate, []
        hop = frame_sizes(rate)[1]
        for piece in samples.to(state.samples).split(self.block * hop):
            wave = torch.cat([state.samples, piece])
            frames = log_mel(wave, rate, n_mels=self.config.n_mels)
            # a view would keep all samples alive
            rest = wave[mel_frame_count(len(wave), rate) * hop :].clone()
            log_probs, state = self._block(frames, replace(state, samples=rest))
            outputs.append(log_probs)
        return torch.cat(outputs) if outputs else self._empty(), state

    @torch.no_grad()
    def step_features(
        self, frames: Float[Tensor, "time mel"], state: AudioStreamState
    ) -> tuple[Float[Tensor, "shorter vocab"], AudioStreamState]:
        """`step` from log-mel features instead of samples."""
        if frames.shape[1] != self.config.n_mels:
            raise ShapeError(
                f"frames: needs n_mels={self.config.n_mels} values per frame, got {frames.shape[1]}"
            )
        outputs = [self._empty()]
        for piece in frames.split(self.block):
            log_probs, state = self._block(piece, state)
            outputs.append(log_probs)
        return torch.cat(outputs), state

    @torch.no_grad()
    def finish(self, state: AudioStreamState) -> Float[Tensor, "time vocab"]:
        """Log-probabilities of the last, incomplete chunk; an incomplete frame is dropped."""
        return self._encode(state.pending, replace(state, pending=state.pending[:, :0]))[0]

    def _block(self, frames: Tensor, state: AudioStreamState) -> tuple[Tensor, AudioStreamState]:
        if not len(frames):
            return self._empty(), state
        x, cmvn_state = self.model.normalize_features(frames[None], state.cmvn_state)
        x, inputs = self.model.standardise(x).mT, []
        pairs = zip(self.model.subsample.convolutions, state.conv_inputs, strict=True)
        for convolution, before in pairs:
            assert isinstance(convolution, nn.Conv1d | TimeFrequencyConv)
            (size,), (stride,) = convolution.kernel_size, convolution.stride
            x = torch.cat([before, x], -1)
            count = max(0, (x.shape[-1] - size) // stride + 1)
            inputs.append(x[..., count * stride :].clone())
            x = F.gelu(convolution(x)) if count else x.new_zeros(1, convolution.out_channels, 0)
        waiting = torch.cat([state.pending, self.model.subsample.out(x.mT)], 1)
        ready = waiting.shape[1] // self.chunk * self.chunk
        rest = waiting[:, ready:].clone()
        state = replace(state, conv_inputs=tuple(inputs), pending=rest, cmvn_state=cmvn_state)
        return self._encode(waiting[:, :ready], state)

    def _encode(self, x: Tensor, state: AudioStreamState) -> tuple[Tensor, AudioStreamState]:
        new = x.shape[1]
        if not new:
            return self._empty(), state
        writer = state.cache.append(new)
        # one chunk sees all of the cache: only several chunks need a mask
        mask = None if new <= self.chunk else self.config.mask
        total = state.total_outputs + new
        positions = torch.arange(state.total_outputs, total, device=x.device)
        x = self.model.encoder(
            x, mask=mask, positions=positions, offset=state.cache.length, cache=writer
        )
        log_probs = upcast(self.model.head(x)).log_softmax(-1)
        return log_probs[0], replace(state, cache=writer.new_cache(), total_outputs=total)

    def _empty(self) -> Tensor:
        return upcast(self.model.standardise.mean.new_zeros(0, self.config.vocab))


class UtteranceStream:
    """A model of whole recordings as a stream: one output, when it ends.

    >>> model = rg.models.WordRecogniser(rg.models.WordRecogniserConfig(vocab=3)).eval()
    >>> stream, wave = UtteranceStream(model), torch.randn(8000)
    >>> outputs, state = stream.step(wave, stream.start())
    >>> outputs.shape, stream.finish(state).shape
    (torch.Size([0, 3]), torch.Size([1, 3]))
    """

    def __init__(self, model: WordRecogniser, *, left_chunks: int | None = None):
        if model.training:
            raise ConfigError("model: needs evaluation mode, got training mode; try model.eval()")
        self.model, self.config = model, model.config

    def start(self, cmvn_state: None = None) -> Float[Tensor, " sample"]:
        """The initial state: no samples."""
        return next(self.model.parameters()).new_zeros(0)

    def step(
        self, samples: Float[Tensor, " sample"], state: Float[Tensor, " before"]
    ) -> tuple[Float[Tensor, "0 vocab"], Float[Tensor, " all"]]:
        """No outputs yet, and all samples."""
        most = MAX_UTTERANCE_SECONDS * self.config.sample_rate
        if len(state) + len(samples) > most:
            raise ConfigError(
                f"recording: needs {MAX_UTTERANCE_SECONDS} s or less for a model of single words, "
                "got more; try cutting it, or training with type = 'recogniser'"
            )
        return upcast(state.new_zeros(0, self.config.vocab)), torch.cat([state, samples.to(state)])

    @torch.no_grad()
    def finish(self, state: Float[Tensor, " sample"]) -> Float[Tensor, "1 vocab"]:
        """Log-probabilities of the whole recording."""
        return self.model.forward_waveform(state[None])[0][0]


class Transcriber:
    """Streaming transcriber: `push` takes samples and returns new text.

    Samples are normalized by `PeakNormalizer`: by the running peak, or by that of the recording
    after `prepare` has read it. `finish` adds a second of silence for the last label. After it,
    `score` is that of `PathScore`, which a run's calibration turns into a confidence.

    Args:
        model: A Recogniser or WordRecogniser in evaluation mode; the second gives its text in
            `finish`.
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
        kind: Any = UtteranceStream if isinstance(model, WordRecogniser) else AudioStream
        self.stream = kind(model, left_chunks=left_chunks)
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
        delay = self.peak_normalizer.delay if self.peak_normalizer else 0.0
        return self.stream.config.delay + delay

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


def select_dither(config: RecogniserConfig | WordRecogniserConfig) -> float:
    """Dither of `PeakNormalizer` for a model: none with CMVN, whose features have a floor."""
    return DITHER if config.cmvn_depth is None else 0.0


def warm_start_cmvn(
    model: Recogniser | WordRecogniser, samples: Float[Tensor, " sample"]
) -> Float[Tensor, "one state"] | None:
    """Initial CMVN state from the first samples of a recording.

    They are processed backwards, so that those nearest to the start count most. None for a model
    that normalizes whole recordings.
    """
    if isinstance(model, WordRecogniser):
        return None
    frames = log_mel(samples, model.config.sample_rate, n_mels=model.config.n_mels)
    frames = frames.to(model.standardise.mean)
    return model.normalize_features(frames.flip(0)[None])[1]
