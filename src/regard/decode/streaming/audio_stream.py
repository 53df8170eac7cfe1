"""A recogniser on sound that is still coming: pieces of any size in, what the whole gives out."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.decode.cache import KVCache
from regard.errors import ConfigError, ShapeError
from regard.models import Recogniser
from regard.nn import TimeFrequencyConv
from regard.ops import frame_sizes, log_mel, mel_frame_count
from regard.ops.terms import upcast

MAX_BLOCK_OUTPUTS = (
    64  # outputs that are made together at most: a piece of an hour needs no more memory
)


@dataclass(frozen=True)
class AudioStreamState:
    """All that a stream carries from piece to piece; it stops growing after the left context.

    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=30, left_chunks=2)).eval()
    >>> state = AudioStream(model).start()
    >>> state.size  # two frames before the first, for each of the two convolutions
    208
    """

    samples: Tensor  # of frames that are not over
    conv_inputs: tuple[Tensor, ...]  # what each convolution will read again
    pending: Tensor  # outputs of the convolutions whose chunk is not full
    cache: KVCache
    cmvn_state: Tensor | None = None  # of a model that reads features against their running means
    total_outputs: int = 0  # outputs that ever were

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        layers = self.cache.storage.layers
        level = () if self.cmvn_state is None else (self.cmvn_state,)
        return sum(
            x.numel() for x in (self.samples, *self.conv_inputs, self.pending, *level, *layers)
        )


class AudioStream:
    """One stream of sound through a recogniser; what comes out is what the whole recording gives.

    log p(label | t) from the samples up to t's chunk, however these are cut into pieces

    The model's attention has to be bounded to the left; `left` bounds one that was trained without
    (counted in chunks), and then the answers are no longer those of the whole recording.

    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=30)).eval()
    >>> stream, wave = AudioStream(model), torch.randn(8000)
    >>> state, heard = stream.start(), []
    >>> for piece in wave.split(999):
    ...     log_probs, state = stream.step(piece, state)
    ...     heard.append(log_probs)
    >>> heard.append(stream.finish(state))
    >>> torch.allclose(torch.cat(heard), model.forward_waveform(wave[None])[0][0], atol=1e-5)
    True
    """

    def __init__(self, model: nn.Module, *, left_chunks: int | None = None):
        if not isinstance(model, Recogniser):
            raise ConfigError(f"model: needs a Recogniser, got {type(model).__name__}")
        if model.training:
            raise ConfigError("model: needs evaluation mode, got training mode; try model.eval()")
        config = model.config
        if config.chunk is None:
            raise ConfigError(
                "chunk: needs a number for a stream, got None: each output hears the whole "
                "recording; try model.forward_waveform, or training with chunk=16"
            )
        if left_chunks is not None and (
            left_chunks < 0 or (config.left_chunks is not None and left_chunks > config.left_chunks)
        ):
            limit = (
                "more" if config.left_chunks is None else f"up to the model's {config.left_chunks}"
            )
            raise ConfigError(f"left_chunks: needs 0 or {limit}, got {left_chunks}")
        if left_chunks is None and config.left_chunks is None:
            raise ConfigError(
                "left_chunks: needs a bound for a stream, got None: each output hears all before it; "
                "try AudioStream(model, left_chunks=64), or training with left_chunks=64"
            )
        self.model, self.chunk = model, config.chunk
        self.config = config if left_chunks is None else replace(config, left_chunks=left_chunks)
        assert self.config.left_chunks is not None
        self.max_cache_length = self.config.left_chunks * self.chunk
        # a multiple of the chunk, or a block would end inside of one
        self.block = -(-MAX_BLOCK_OUTPUTS // self.chunk) * self.chunk * model.subsample.factor

    def start(self, cmvn_state: Float[Tensor, "one state"] | None = None) -> AudioStreamState:
        """The state before the first sample; `level` is that of the running normalisation."""
        some = self.model.standardise.mean
        convolutions = self.model.subsample.convolutions
        return AudioStreamState(
            samples=some.new_zeros(0),
            conv_inputs=tuple(
                some.new_zeros(1, c.in_channels, self.model.subsample.left)  # type: ignore[arg-type]
                for c in convolutions
            ),
            pending=some.new_zeros(1, 0, self.config.dim),
            cache=KVCache(max_length=self.max_cache_length),
            cmvn_state=cmvn_state,
        )

    @torch.no_grad()
    def step(
        self, samples: Float[Tensor, " sample"], state: AudioStreamState
    ) -> tuple[Float[Tensor, "time vocab"], AudioStreamState]:
        """What more samples, at the model's rate, let out: log-probabilities, none or several."""
        rate, found = self.config.sample_rate, []
        hop = frame_sizes(rate)[1]
        for piece in samples.to(state.samples).split(self.block * hop):
            wave = torch.cat([state.samples, piece])
            frames = log_mel(wave, rate, n_mels=self.config.n_mels)
            rest = wave[
                mel_frame_count(len(wave), rate) * hop :
            ].clone()  # a view would keep the whole
            log_probs, state = self._block(frames, replace(state, samples=rest))
            found.append(log_probs)
        return torch.cat(found) if found else self._nothing(), state

    @torch.no_grad()
    def step_features(
        self, frames: Float[Tensor, "time mel"], state: AudioStreamState
    ) -> tuple[Float[Tensor, "shorter vocab"], AudioStreamState]:
        """The same from features, for who makes them elsewhere."""
        if frames.shape[1] != self.config.n_mels:
            raise ShapeError(
                f"frames: needs n_mels={self.config.n_mels} values per frame, got {frames.shape[1]}"
            )
        found = [self._nothing()]
        for piece in frames.split(self.block):
            log_probs, state = self._block(piece, state)
            found.append(log_probs)
        return torch.cat(found), state

    @torch.no_grad()
    def finish(self, state: AudioStreamState) -> Float[Tensor, "time vocab"]:
        """What the last chunk gives that was not full; samples of no whole frame say nothing."""
        return self._encode(state.pending, replace(state, pending=state.pending[:, :0]))[0]

    def _block(self, frames: Tensor, state: AudioStreamState) -> tuple[Tensor, AudioStreamState]:
        if not len(frames):
            return self._nothing(), state
        x, level = self.model.normalize_features(frames[None], state.cmvn_state)
        x, inputs = self.model.standardise(x).mT, []
        pairs = zip(self.model.subsample.convolutions, state.conv_inputs, strict=True)
        for convolution, before in pairs:
            x = torch.cat([before, x], -1)
            x, rest = _convolve(convolution, x)
            inputs.append(rest)
        waiting = torch.cat([state.pending, self.model.subsample.out(x.mT)], 1)
        ready = waiting.shape[1] // self.chunk * self.chunk
        rest = waiting[:, ready:].clone()
        state = replace(state, conv_inputs=tuple(inputs), pending=rest, cmvn_state=level)
        return self._encode(waiting[:, :ready], state)

    def _encode(self, x: Tensor, state: AudioStreamState) -> tuple[Tensor, AudioStreamState]:
        new = x.shape[1]
        if not new:
            return self._nothing(), state
        writer = state.cache.append(new)
        # one chunk sees all of the cache: only several chunks need a mask
        mask = None if new <= self.chunk else self.config.mask
        positions = torch.arange(state.total_outputs, state.total_outputs + new, device=x.device)
        x = self.model.encoder(
            x, mask=mask, positions=positions, offset=state.cache.length, cache=writer
        )
        log_probs = upcast(self.model.head(x)).log_softmax(-1)
        total = state.total_outputs + new
        return log_probs[0], replace(state, cache=writer.new_cache(), total_outputs=total)

    def _nothing(self) -> Tensor:
        return upcast(self.model.standardise.mean.new_zeros(0, self.config.vocab))


def _convolve(convolution: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a convolution makes of the inputs there are, and those it will read again."""
    assert isinstance(convolution, nn.Conv1d | TimeFrequencyConv)
    (size,), (stride,) = convolution.kernel_size, convolution.stride
    count = max(0, (x.shape[-1] - size) // stride + 1)
    y = F.gelu(convolution(x)) if count else x.new_zeros(1, convolution.out_channels, 0)
    return y, x[..., count * stride :].clone()
