"""Offline speech encoder with the architecture of Whisper's (Radford et al. 2022)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models.config import StackConfig, check_positive, make_encoder, register_model
from regard.nn import ConvSubsampling
from regard.ops import Padding, lookup_positions


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
        x = x + lookup_positions(self.positions, torch.arange(x.shape[1], device=x.device))
        mask = None if lengths is None else Padding(self.subsample.out_lengths(lengths))
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
