"""Fewer, wider frames for the encoder: convolutions along time and bands, and one scale for all."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.linear import xavier_linear
from regard.nn.norm import Norm

TIME_KERNEL = 3
BAND_KERNEL = 5  # that a filter over the bands sees; it moves by two of them


class TimeFrequencyConv(nn.Module):
    """A convolution along time and over bands, for frames whose channels of all bands are one row.

    y_{t,j} = b + Σ_{s=0,1,2} Σ_{i=0…4} W_{s,i} x_{stride · t + s, 2j + i - 2},   half as many bands

    What is said a little higher moves to the next bands, and looks the same to it.

    >>> TimeFrequencyConv(1, 8, 40)(torch.zeros(1, 40, 9)).shape
    torch.Size([1, 160, 4])
    """

    def __init__(self, channels: int, out_filters: int, bands: int, stride: int = 2):
        super().__init__()
        self.channels, self.bands, self.out_bands = channels, bands, (bands + 1) // 2
        self.filters = nn.Conv2d(
            channels,
            out_filters,
            (BAND_KERNEL, TIME_KERNEL),
            (2, stride),
            padding=(BAND_KERNEL // 2, 0),
        )
        # what a convolution along time alone would be called by
        self.in_channels, self.out_channels = channels * bands, out_filters * self.out_bands
        self.kernel_size, self.stride = (TIME_KERNEL,), (stride,)

    def forward(self, x: Float[Tensor, "batch inputs time"]) -> Float[Tensor, "batch outputs less"]:
        return self.filters(x.unflatten(1, (self.channels, self.bands))).flatten(1, 2)


class ConvSubsampling(nn.Module):
    """Convolutions of kernel 3 along time, each followed by GELU; their strides shorten the row.

    y_t = gelu(b + Σ_{s=0,1,2} W_s x_{stride · t + s - left}),   left = 2 if causal, else 1

    With `causal` all missing frames are on the left: output t needs no frame after factor · t, so
    a stream gives what the whole recording gives. `lengths` says where each sequence ends; what
    lies behind counts as zero. With `filters` each convolution goes over the bands too, with so
    many filters (`TimeFrequencyConv`), and a projection, a norm and GELU follow.

    >>> ConvSubsampling(80, 16)(torch.zeros(1, 9, 80)).shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        input_dim: int,
        dim: int,
        *,
        strides: Sequence[int] = (2, 2),
        causal: bool = True,
        filters: int | None = None,
    ):
        super().__init__()
        if not strides or min(strides) < 1:
            raise ShapeError(f"strides: needs one or more, each 1 or more, got {tuple(strides)}")
        self.strides, self.left = tuple(strides), TIME_KERNEL - 1 if causal else TIME_KERNEL // 2
        self.convolutions, self.out = nn.ModuleList(), nn.Sequential()
        for n, stride in enumerate(strides):
            if filters is None:
                layer = nn.Conv1d(dim if n else input_dim, dim, TIME_KERNEL, stride)
            else:
                layer = TimeFrequencyConv(filters if n else 1, filters, input_dim, stride)
                input_dim = layer.out_bands
            self.convolutions.append(layer)
        if filters is not None:
            self.out = nn.Sequential(xavier_linear(filters * input_dim, dim), Norm(dim), nn.GELU())

    @property
    def factor(self) -> int:
        """How many frames become one: the product of the strides."""
        return torch.Size(self.strides).numel()

    def forward(
        self, x: Float[Tensor, "batch time inputs"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch shorter dim"]:
        if not x.shape[1]:
            raise ShapeError("x: needs 1 frame or more, got 0; try a longer recording")
        x = rearrange(x, "batch time inputs -> batch inputs time")
        for convolution, stride in zip(self.convolutions, self.strides, strict=True):
            if lengths is not None:
                x = x.masked_fill(~valid_frames(lengths, x.shape[-1])[:, None], 0)
                lengths = _shorter(lengths, stride)
            x = F.gelu(convolution(F.pad(x, (self.left, TIME_KERNEL - 1 - self.left))))
        return self.out(rearrange(x, "batch dim shorter -> batch shorter dim"))

    def out_lengths(self, lengths: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """How many outputs there are for so many frames: ⌈length / stride⌉, stride by stride.

        >>> ConvSubsampling(80, 16).out_lengths(torch.tensor([0, 1, 4, 5]))
        tensor([0, 1, 1, 2])
        """
        for stride in self.strides:
            lengths = _shorter(lengths, stride)
        return lengths


class GlobalCMVN(nn.Module):
    """Features at one scale: mean and spread are measured once, on training data, and kept.

    y = (x - mean) / spread, feature by feature

    A mean over the whole recording would need its future; this one works on a stream.

    >>> standardise = GlobalCMVN(1)
    >>> standardise.fit(torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([2]))
    >>> standardise(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten()
    tensor([-1.,  0.,  1.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, input_dim: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(input_dim))
        self.register_buffer("std", torch.ones(input_dim))

    def fit(self, x: Float[Tensor, "batch time inputs"], lengths: Int[Tensor, " batch"]) -> None:
        """Measure mean and spread over all real frames."""
        real = x[valid_frames(lengths, x.shape[1])]
        if not len(real):
            raise ShapeError(f"lengths: needs 1 frame or more in all, got {lengths.tolist()}")
        spread = real.std(0, correction=0)
        self.mean.copy_(real.mean(0))
        self.std.copy_(torch.where(spread > 0, spread, 1))  # a constant feature stays finite

    def forward(self, x: Float[Tensor, "batch time inputs"]) -> Float[Tensor, "batch time inputs"]:
        return (x - self.mean) / self.std


def valid_frames(lengths: Int[Tensor, " batch"], time: int) -> Bool[Tensor, "batch time"]:
    """Which frames are real and not padding: t < length.

    >>> valid_frames(torch.tensor([1, 2]), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """
    return torch.arange(time, device=lengths.device) < lengths[:, None]


def _shorter(lengths: Tensor, stride: int) -> Tensor:
    return (lengths + stride - 1) // stride
