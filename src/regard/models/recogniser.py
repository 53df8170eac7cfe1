"""Speech to text while it is being spoken: log-mel, convolutions, a causal encoder, CTC."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models.config import StackConfig, check_positive, make_encoder
from regard.models.registry import register_model
from regard.nn import ConvSubsampling, GlobalCMVN, xavier_linear
from regard.ops import Causal, Chunked, Local, Mask, Padding, log_mel, mel_frame_count, online_cmvn
from regard.ops.audio.log_mel import HOP_SECONDS, WINDOW_SECONDS
from regard.ops.terms import upcast

BLANK = 0  # the label that says: nothing new here


@dataclass(frozen=True, kw_only=True)
class RecogniserConfig(StackConfig):
    """A recogniser; `vocab` counts the blank, label 0. One output stands for four frames, 40 ms.

    `chunk` is how many outputs are made at a time and hear each other (1: strictly causal, None:
    the whole recording), `left` how many chunks back each can hear (None: all). With `level` the
    features are `online_cmvn` to that depth: loudness and microphone change little. With `filters`
    the first convolutions go over the bands too: a higher voice changes little.

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
    # Only distances count: a stream has no end, and a key once turned stays as it is.
    rope_theta: float | None = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sample_rate", "n_mels", "chunk", "filters")
        if self.vocab < 2:
            raise ConfigError(f"vocab: needs the blank and 1 label or more, got {self.vocab}")
        if self.rope_theta is not None and self.resolved_head_dim % 2:
            raise ConfigError(
                f"dim: needs an even width a head, rotary turns pairs, got {self.resolved_head_dim} "
                f"for dim={self.dim}, heads={self.heads}"
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
    def mask(self) -> Mask | None:
        """What an output may hear of the others."""
        if self.chunk is None:
            return None
        if self.chunk == 1:
            return Causal() if self.left_chunks is None else Causal() & Local(self.left_chunks)
        return Chunked(self.chunk, self.left_chunks)

    @property
    def delay(self) -> float:
        """Seconds of sound after its own frame's start that an output has to wait for."""
        if self.chunk is None:
            return torch.inf
        return round(WINDOW_SECONDS + HOP_SECONDS * 4 * (self.chunk - 1), 6)


@register_model(RecogniserConfig)
class Recogniser(nn.Module):
    """From sound to the log-probability of each label at each moment.

    log p(label | t) = log_softmax(W encoder(subsample((x - mean) / spread))_t)

    `cmvn_state` is the state that the running normalisation of a model with a `level` starts from.
    x is the features, or `online_cmvn` ones where the config has a `level`. Nothing looks ahead but
    the chunk: convolutions are padded on the left alone, attention is masked. So a stream can give
    what the whole recording gives, in bounded memory, from: the last samples (`mel_frame_count`), the
    level, each convolution's last two inputs, and the keys and values of each layer's last `left`
    chunks, through Encoder's `cache`, with `offset` counting those kept and `positions` all that
    ever were.

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
        if features.shape[2] != self.config.n_mels:
            raise ShapeError(
                f"features: needs n_mels={self.config.n_mels} values per frame, got {features.shape[2]}"
            )
        if lengths is None:
            lengths = torch.full((batch,), time)
        _check_lengths(lengths, batch, time)
        lengths = lengths.to(features.device)
        x = self.standardise(self.normalize_features(features, cmvn_state)[0])
        x = self.dropout(self.subsample(x, lengths))
        lengths = self.subsample.out_lengths(lengths)
        real = Padding(lengths)
        mask = real if self.config.mask is None else self.config.mask & real
        x = self.encoder(x, mask=mask)
        return upcast(self.head(x)).log_softmax(-1), lengths

    def normalize_features(
        self,
        features: Float[Tensor, "batch time mel"],
        cmvn_state: Float[Tensor, "batch state"] | None = None,
    ) -> tuple[Float[Tensor, "batch time mel"], Float[Tensor, "batch state"] | None]:
        """The features as the model reads them, and the state after them of one with a level.

        >>> model = Recogniser(recogniser_tiny(vocab=30, n_mels=1, cmvn_depth=8.0))
        >>> model.normalize_features(torch.tensor([[[3.0], [-9.0]]]))[0].flatten()
        tensor([ 3.8095, -4.1910])
        """
        if self.config.cmvn_depth is None:
            return features, None
        return online_cmvn(features, cmvn_state, dynamic_range=self.config.cmvn_depth)

    def forward_waveform(
        self, wave: Float[Tensor, "batch sample"], lengths: Int[Tensor, " batch"] | None = None
    ) -> tuple[Float[Tensor, "batch shorter vocab"], Int[Tensor, " batch"]]:
        """The same from a waveform at the config's rate; `lengths` are in samples.

        forward(log_mel(wave))

        >>> model = Recogniser(recogniser_tiny(vocab=30))
        >>> model.forward_waveform(torch.randn(1, 8000))[0].shape
        torch.Size([1, 25, 30])
        """
        rate = self.config.sample_rate
        features = log_mel(wave, rate, n_mels=self.config.n_mels)
        if lengths is None:
            return self(features)
        _check_lengths(lengths, *wave.shape)
        frames = [mel_frame_count(samples, rate) for samples in lengths.tolist()]
        return self(features, torch.tensor(frames, device=lengths.device))


def ctc_loss(
    log_probs: Float[Tensor, "batch time vocab"],
    lengths: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch label"],
    target_lengths: Int[Tensor, " batch"],
) -> Float[Tensor, ""]:
    """How surprising the right labels are, summed over all ways to place them (Graves et al. 2006).

    loss = mean over sequences of -log(Σ_paths Π_t p(path_t | t)) / labels

    The paths are those that become the target when repeats are joined and blanks left out; so two
    equal labels in a row need a blank between.

    >>> half = torch.full((1, 1, 2), 0.5).log()
    >>> ctc_loss(half, torch.tensor([1]), torch.tensor([[1]]), torch.tensor([1]))
    tensor(0.6931)
    """
    same = (targets[:, 1:] == targets[:, :-1]).to(lengths.device)
    inside = torch.arange(targets.shape[1], device=lengths.device)[1:]
    repeats = (same & (inside < target_lengths.to(lengths.device)[:, None])).sum(1)
    short = lengths - target_lengths.to(lengths.device) - repeats
    if bool((short < 0).any()):  # torch would answer inf, and the step would spoil every weight
        n = int(short.argmin())
        raise ShapeError(
            f"targets: needs at most one label an output and a blank between equal ones, got "
            f"{int(target_lengths[n])} labels with {int(repeats[n])} repeats for {int(lengths[n])} "
            f"outputs in sequence {n}; try leaving it out"
        )
    return F.ctc_loss(
        log_probs.transpose(0, 1), targets, lengths, target_lengths, blank=BLANK, reduction="mean"
    )


def recogniser_tiny(vocab: int, **changes) -> RecogniserConfig:
    """For narrow-band sound and a CPU: 8 kHz, strictly causal, 3 layers of 64.

    >>> recogniser_tiny(vocab=30).dim
    64
    """
    preset = RecogniserConfig(
        vocab=vocab, sample_rate=8000, n_mels=40, layers=3, dim=64, heads=4, dropout=0.1
    )
    return replace(preset, **changes)


def recogniser_small(vocab: int, **changes) -> RecogniserConfig:
    """For speech at 16 kHz, in chunks of 0.64 s: 12 layers of 256, 10 million parameters.

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
    if lengths.is_cuda:  # to ask would make every step wait
        return
    if batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= time:
        raise ShapeError(f"lengths: needs 0 to {time}, got {lengths.tolist()}")
