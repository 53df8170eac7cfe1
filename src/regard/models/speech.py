"""Speech models: a streaming recogniser with CTC, and an offline encoder as Whisper has."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.models.config import StackConfig, check_positive, make_encoder, register_model
from regard.nn import ConvSubsampling, GlobalCMVN, xavier_linear
from regard.ops.audio import HOP_SECONDS, WINDOW_SECONDS
from regard.ops.terms import upcast

BLANK = 0  # label of CTC


@dataclass(frozen=True, kw_only=True)
class RecogniserConfig(StackConfig):
    """Config of a recogniser; one output covers four frames, 40 ms.

    `vocab` includes the blank, label 0. `chunk` outputs are computed together and attend to each
    other (1: strictly causal, None: the whole recording); `left_chunks` is the left context (None:
    unlimited). `cmvn_depth` applies `online_cmvn` with that dynamic range, `filters` convolves over
    mel bands as well as time.

    >>> RecogniserConfig(vocab=30, layers=1, dim=8, heads=2, chunk=8).delay
    0.305
    """

    vocab: int
    sample_rate: int = 16000
    n_mels: int = 80
    chunk: int | None = 1
    left_chunks: int | None = 64
    cmvn_depth: float | None = None
    filters: int | None = None
    # relative positions: a stream has no end, and cached keys stay valid
    rope_theta: float | None = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sample_rate", "n_mels", "chunk", "filters")
        if self.mixer != "attention":
            raise ConfigError(
                f"mixer: needs 'attention' for chunks of a recording, got {self.mixer!r}"
            )
        if self.vocab < 2:
            raise ConfigError(f"vocab: needs the blank and 1 label or more, got {self.vocab}")
        if self.rope_theta is not None and self.resolved_head_dim % 2:
            raise ConfigError(
                f"dim: needs an even width per head for rotary positions, got "
                f"{self.resolved_head_dim} for dim={self.dim}, heads={self.heads}"
            )
        if self.left_chunks is not None and self.left_chunks < 0:
            raise ConfigError(
                f"left_chunks: needs 0 or more, got {self.left_chunks}; try None for everything"
            )
        if self.cmvn_depth is not None and self.cmvn_depth <= 0:
            raise ConfigError(
                f"cmvn_depth: needs more than 0, got {self.cmvn_depth}; try 8, or None"
            )

    @property
    def mask(self) -> ops.Mask | None:
        """The attention mask between outputs; None: no mask."""
        if self.chunk is None:
            return None
        if self.chunk > 1:
            return ops.Chunked(self.chunk, self.left_chunks)
        causal = ops.Causal()
        return causal if self.left_chunks is None else causal & ops.Local(self.left_chunks)

    @property
    def delay(self) -> float:
        """Latency in seconds: audio needed after the start of an output's frame."""
        if self.chunk is None:
            return torch.inf
        return round(WINDOW_SECONDS + HOP_SECONDS * 4 * (self.chunk - 1), 6)


@register_model(RecogniserConfig)
class Recogniser(nn.Module):
    """Log-probabilities of the labels at each output step.

    log p(label | t) = log_softmax(W encoder(subsample((x - mean) / spread))_t)

    `cmvn_state` is the initial state of the running normalization. Convolutions are padded on the
    left only and attention is masked, so that `decode.AudioStream` computes the same from a stream
    in bounded memory.

    >>> model = Recogniser(recogniser_tiny(vocab=30))
    >>> log_probs, lengths = model(torch.randn(2, 100, 40), torch.tensor([100, 61]))
    >>> log_probs.shape, lengths
    (torch.Size([2, 25, 30]), tensor([25, 16]))
    """

    def __init__(self, config: RecogniserConfig):
        super().__init__()
        self.config = config
        self.standardise = GlobalCMVN(config.n_mels)
        self.subsample = ConvSubsampling(config.n_mels, config.dim, filters=config.filters)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = make_encoder(config, bidirectional=config.chunk != 1)
        self.head = xavier_linear(config.dim, config.vocab)

    def forward(
        self,
        features: Float[Tensor, "batch time mel"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        cmvn_state: Float[Tensor, "batch state"] | None = None,
    ) -> tuple[Float[Tensor, "batch shorter vocab"], Int[Tensor, " batch"]]:
        batch, time = features.shape[:2]
        n_mels, got = self.config.n_mels, features.shape[2]
        if got != n_mels:
            raise ShapeError(f"features: needs n_mels={n_mels} values per frame, got {got}")
        if lengths is None:
            lengths = torch.full((batch,), time)
        _check_lengths(lengths, batch, time)
        lengths = lengths.to(features.device)
        x = self.standardise(self.normalize_features(features, cmvn_state)[0])
        x = self.dropout(self.subsample(x, lengths))
        lengths = self.subsample.out_lengths(lengths)
        real = ops.Padding(lengths)
        mask = real if self.config.mask is None else self.config.mask & real
        x = self.encoder(x, mask=mask)
        return upcast(self.head(x)).log_softmax(-1), lengths

    def normalize_features(
        self,
        features: Float[Tensor, "batch time mel"],
        cmvn_state: Float[Tensor, "batch state"] | None = None,
    ) -> tuple[Float[Tensor, "batch time mel"], Float[Tensor, "batch state"] | None]:
        """Normalized features and the next CMVN state; unchanged features and None without CMVN.

        >>> model = Recogniser(recogniser_tiny(vocab=30, n_mels=1, cmvn_depth=8.0))
        >>> model.normalize_features(torch.tensor([[[3.0], [-9.0]]]))[0].flatten()
        tensor([ 3.8095, -4.1910])
        """
        if self.config.cmvn_depth is None:
            return features, None
        return ops.online_cmvn(features, cmvn_state, dynamic_range=self.config.cmvn_depth)

    def forward_waveform(
        self, wave: Float[Tensor, "batch sample"], lengths: Int[Tensor, " batch"] | None = None
    ) -> tuple[Float[Tensor, "batch shorter vocab"], Int[Tensor, " batch"]]:
        """`forward` from a waveform at the config's sample rate; `lengths` are in samples."""
        rate = self.config.sample_rate
        features = ops.log_mel(wave, rate, n_mels=self.config.n_mels)
        if lengths is None:
            return self(features)
        _check_lengths(lengths, *wave.shape)
        frames = [ops.mel_frame_count(samples, rate) for samples in lengths.tolist()]
        return self(features, torch.tensor(frames, device=lengths.device))


def ctc_loss(
    log_probs: Float[Tensor, "batch time vocab"],
    lengths: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch label"],
    target_lengths: Int[Tensor, " batch"],
) -> Float[Tensor, ""]:
    """Connectionist temporal classification loss, per label, averaged over sequences (Graves 2006).

    loss = mean over sequences of -log(Σ_paths Π_t p(path_t | t)) / labels

    Paths give the target once repeats are merged and blanks removed, so two equal labels in a row
    need a blank between them. A target that does not fit raises instead of giving an infinite loss.

    >>> half = torch.full((1, 1, 2), 0.5).log()
    >>> ctc_loss(half, torch.tensor([1]), torch.tensor([[1]]), torch.tensor([1]))
    tensor(0.6931)
    """
    equal = (targets[:, 1:] == targets[:, :-1]).to(lengths.device)
    index = torch.arange(targets.shape[1], device=lengths.device)[1:]
    repeats = (equal & (index < target_lengths.to(lengths.device)[:, None])).sum(1)
    spare = lengths - target_lengths.to(lengths.device) - repeats
    if bool((spare < 0).any()):  # torch gives inf, and the update would destroy every weight
        n = int(spare.argmin())
        raise ShapeError(
            f"targets: needs at most one label per output and a blank between equal ones, got "
            f"{int(target_lengths[n])} labels with {int(repeats[n])} repeats for {int(lengths[n])} "
            f"outputs in sequence {n}; try leaving it out"
        )
    return F.ctc_loss(
        log_probs.transpose(0, 1), targets, lengths, target_lengths, blank=BLANK, reduction="mean"
    )


def recogniser_tiny(vocab: int, **changes) -> RecogniserConfig:
    """Preset for 8 kHz audio and a CPU: strictly causal, 3 layers of width 64.

    >>> recogniser_tiny(vocab=30).dim
    64
    """
    preset = RecogniserConfig(
        vocab=vocab, sample_rate=8000, n_mels=40, layers=3, dim=64, heads=4, dropout=0.1
    )
    return replace(preset, **changes)


def recogniser_small(vocab: int, **changes) -> RecogniserConfig:
    """Preset for 16 kHz speech, chunks of 0.64 s: 12 layers of width 256, 10 million parameters.

    >>> recogniser_small(vocab=500).delay
    0.625
    """
    preset = RecogniserConfig(
        vocab=vocab, layers=12, dim=256, heads=4, chunk=16, left_chunks=8, dropout=0.1
    )
    return replace(preset, **changes)


def _check_lengths(lengths: Tensor, batch: int, time: int) -> None:
    if lengths.shape != (batch,):
        raise ShapeError(
            f"lengths: needs one for each of {batch} sequences, got {tuple(lengths.shape)}"
        )
    if lengths.is_cuda:  # reading them would synchronise every step
        return
    if batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= time:
        raise ShapeError(f"lengths: needs 0 to {time}, got {lengths.tolist()}")


@dataclass(frozen=True, kw_only=True)
class SpeechEncoderConfig(StackConfig):
    """Config of a speech encoder; `max_positions` is the size of the position table.

    >>> SpeechEncoderConfig(dim=384, layers=4, heads=6).max_positions
    1500
    """

    n_mels: int = 80
    max_positions: int = 1500

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "n_mels", "max_positions")
        if self.dim < 4 or self.dim % 2:
            raise ConfigError(f"dim: needs an even number of 4 or more, got {self.dim}")


@register_model(SpeechEncoderConfig)
class SpeechEncoder(nn.Module):
    """Two convolutions that halve the frame rate, sinusoidal positions, a pre-LN encoder.

    y = LN(blocks(gelu(conv_{stride 2}(gelu(conv(x)))) + codes))

    >>> config = SpeechEncoderConfig(dim=16, layers=1, heads=2)
    >>> SpeechEncoder(config)(torch.randn(1, 100, 80)).shape
    torch.Size([1, 50, 16])
    """

    positions: Tensor

    def __init__(self, config: SpeechEncoderConfig):
        super().__init__()
        self.config = config
        self.subsample = ConvSubsampling(config.n_mels, config.dim, strides=(1, 2), causal=False)
        self.register_buffer("positions", _codes(config.max_positions, config.dim))
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = make_encoder(config)

    def forward(
        self,
        features: Float[Tensor, "batch time mel"],
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch shorter dim"]:
        n_mels, got = self.config.n_mels, features.shape[2]
        if got != n_mels:
            raise ShapeError(f"features: needs n_mels={n_mels} values per frame, got {got}")
        x = self.subsample(features, lengths)
        x = x + ops.lookup_positions(self.positions, torch.arange(x.shape[1], device=x.device))
        mask = None if lengths is None else ops.Padding(self.subsample.out_lengths(lengths))
        return self.encoder(self.dropout(x), mask=mask)


def _codes(time: int, dim: int) -> Tensor:
    """Sinusoidal positions: all sines, then all cosines; the lowest frequency is exactly 1 / 10000.

    `ops.sinusoidal` interleaves both and ends above 1 / 10000; trained weights expect these.
    """
    places = torch.arange(time, dtype=torch.float64)[:, None]
    # its device by name: where transformers has loaded a model, linspace is on the CPU
    steps = torch.linspace(0, 1, dim // 2, dtype=torch.float64, device=places.device)
    angles = places * 10000.0**-steps
    return torch.cat([angles.sin(), angles.cos()], -1).float()
