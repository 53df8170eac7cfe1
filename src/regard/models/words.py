"""Recognition of single spoken words: a residual network over the log-mel frames of a recording."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models.baselines import ResidualBlock, convolution, stage_widths
from regard.models.config import check_positive, register_model
from regard.ops import log_mel
from regard.ops.masks import length_mask
from regard.ops.terms import upcast

LOUD = 5.0  # nats below the loudest frame: the sound is from the first such frame to the last
SCALE = 2.5  # about the standard deviation of the normalized frames


@dataclass(frozen=True, kw_only=True)
class WordRecogniserConfig:
    """Config of a recogniser of single words; the width doubles per stage up to `width`.

    `vocab` includes the blank of CTC, label 0, which is no word. `cmvn_depth` is the dynamic range
    of the frames in nats.

    >>> WordRecogniserConfig(vocab=11).widths
    (16, 32, 64)
    """

    vocab: int
    sample_rate: int = 16000
    n_mels: int = 40
    cmvn_depth: float = 10.0
    width: int = 64
    stages: int = 3
    blocks: int = 1  # per stage
    dropout: float = 0.0  # before the head

    def __post_init__(self) -> None:
        check_positive(self, "vocab", "sample_rate", "n_mels", "width", "stages", "blocks")
        if self.vocab < 2:
            raise ConfigError(f"vocab: needs the blank and 1 word or more, got {self.vocab}")
        if not self.cmvn_depth > 0:
            raise ConfigError(f"cmvn_depth: needs more than 0, got {self.cmvn_depth}; try 10")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: needs 0 ≤ rate < 1, got {self.dropout}")
        stage_widths(self.width, self.stages)  # raises if it cannot be halved so often

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels per stage."""
        return stage_widths(self.width, self.stages)

    @property
    def delay(self) -> float:
        """Latency in seconds: it answers at the end of the recording."""
        return torch.inf


@register_model(WordRecogniserConfig)
class WordRecogniser(nn.Module):
    """Log-probabilities of the words that a recording may be: one output per recording.

    x = (max(frames, loudest - depth) - mean over the sound) / 2.5
    log p(word) = log_softmax(W mean over the sound of resnet(x))

    The sound is from the first to the last loud frame; what is before and after it, and padding,
    changes nothing. The mean is over time alone: the head knows the bands. As log-probabilities of
    CTC with one output, they are trained and decoded as those of a `Recogniser`.

    >>> model = WordRecogniser(WordRecogniserConfig(vocab=11)).eval()
    >>> log_probs, lengths = model(torch.randn(2, 100, 40), torch.tensor([100, 61]))
    >>> log_probs.shape, lengths
    (torch.Size([2, 1, 11]), tensor([1, 1]))
    """

    def __init__(self, config: WordRecogniserConfig):
        super().__init__()
        self.config, widths = config, config.widths
        self.stem, self.blocks = convolution(1, widths[0], stride=2), nn.ModuleList()
        bands = (config.n_mels + 1) // 2
        for stage, width in enumerate(widths):
            for block in range(config.blocks):
                first = block == 0 and stage > 0
                bands = (bands + 1) // 2 if first else bands
                inputs = widths[stage - first]
                self.blocks.append(ResidualBlock(inputs, width, stride=2 if first else 1))
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(widths[-1] * bands, config.vocab)

    def forward(
        self,
        features: Float[Tensor, "batch time mel"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        cmvn_state: None = None,
    ) -> tuple[Float[Tensor, "batch 1 vocab"], Int[Tensor, " batch"]]:
        batch, time, mels = features.shape
        if mels != self.config.n_mels or not time:
            raise ShapeError(
                f"features: needs n_mels={self.config.n_mels} values of 1 frame or more, got "
                f"{mels} of {time}"
            )
        if lengths is None:
            lengths = torch.full((batch,), time, device=features.device)
        x, mask = self._select_sound(features, lengths.to(features.device))
        x, mask = x[:, None], mask[:, None, :, None]
        x, mask = self.stem(x).relu(), mask[:, :, ::2]
        x = x * mask
        for block in self.blocks:
            mask = mask[:, :, :: block.stride]
            x = block(x, mask)
        count = mask.sum(2).clamp(min=1)[..., 0]
        x = rearrange(x.sum(2), "batch channel band -> batch (channel band)") / count
        logits = self.head(self.dropout(x))
        ones = torch.ones(batch, dtype=torch.long, device=logits.device)
        return upcast(logits).log_softmax(-1)[:, None], ones

    def _select_sound(
        self, features: Tensor, lengths: Tensor
    ) -> tuple[Float[Tensor, "batch less mel"], Bool[Tensor, "batch less"]]:
        """Normalized frames of the sound, moved to the start, and which of them are not padding."""
        real = length_mask(lengths, features.shape[1])
        loudness = upcast(features).logsumexp(-1).masked_fill(~real, -torch.inf)
        loud = real & (loudness >= loudness.amax(1, keepdim=True) - LOUD)
        after = loud.cumsum(1) > 0
        mask = after & (loud.flip(1).cumsum(1).flip(1) > 0)
        count = mask.sum(1)
        size = features.shape[1] if features.is_cuda else max(1, int(count.max()))
        place = torch.arange(size, device=features.device)
        index = ((~after).sum(1, keepdim=True) + place).clamp(max=features.shape[1] - 1)
        x = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
        mask = place < count[:, None]
        inside = mask[..., None]
        loudest = x.masked_fill(~inside, -torch.inf).amax((1, 2), keepdim=True)
        x = x.maximum(loudest - self.config.cmvn_depth).masked_fill(~inside, 0)
        mean = x.sum(1, keepdim=True) / count.clamp(min=1)[:, None, None]
        return ((x - mean) / SCALE).masked_fill(~inside, 0), mask

    def forward_waveform(
        self, wave: Float[Tensor, "batch sample"]
    ) -> tuple[Float[Tensor, "batch 1 vocab"], Int[Tensor, " batch"]]:
        """`forward` from a waveform at the config's sample rate."""
        return self(log_mel(wave, self.config.sample_rate, n_mels=self.config.n_mels))
