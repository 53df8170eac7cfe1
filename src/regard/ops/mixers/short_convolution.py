"""Short causal convolutions, one filter per channel: an exact band of weights."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A causal convolution over a few tokens, with one filter per channel (LFM2).

    y_t = Σ_j w_tj x_j + bias,   w_tj = taps[width - 1 - (t - j)] where 0 ≤ t - j < width, else 0

    With `silu` the output is silu(y). `state` has the values before the first token; None is zeros.

    >>> x, taps = torch.tensor([[[1.0, 0.0, 2.0]]]), torch.tensor([[0.5, 1.0]])
    >>> ShortConvolution(x=x, taps=taps).output()  # y_t = 0.5 x_{t-1} + x_t
    tensor([[[1.0000, 0.5000, 2.0000]]])
    """

    x: Float[Tensor, "batch channel time"]
    taps: Float[Tensor, "channel width"]
    bias: Float[Tensor, " channel"] | None = None
    silu: bool = False
    state: Float[Tensor, "batch channel before"] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 3 or self.taps.shape[:-1] != self.x.shape[1:2]:
            shapes = f"{tuple(self.taps.shape)} for x of {tuple(self.x.shape)}"
            raise ShapeError(
                f"taps: needs (channel, width) of x (batch, channel, time), got {shapes}"
            )

    @property
    def time(self) -> int:
        """The number of tokens."""
        return self.x.shape[-1]

    @property
    def width(self) -> int:
        """The number of tokens that an output reads."""
        return self.taps.shape[-1]

    def output(self) -> Float[Tensor, "batch channel time"]:
        """The outputs, as sums of shifted values."""
        before = self.x[..., :0] if self.state is None else self.state
        before = before[..., max(0, before.shape[-1] - self.width + 1) :].to(self.x)
        x = F.pad(torch.cat([before, self.x], -1), (self.width - 1 - before.shape[-1], 0))
        y = torch.zeros_like(self.x) if self.bias is None else self.bias[:, None].expand_as(self.x)
        for i, tap in enumerate(self.taps.unbind(-1)):
            y = y + tap[:, None] * x[..., i : i + self.time]
        return F.silu(y) if self.silu else y
