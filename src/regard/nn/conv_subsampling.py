"""Convolutional subsampling of speech features, and their global normalisation."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.layers import Norm, xavier_linear
from regard.ops.masks import length_mask

TIME_KERNEL = 3
BAND_KERNEL = 5  # with stride 2


class TimeFrequencyConv(nn.Module):
    """2D convolution over time and bands, on frames with channels and bands flattened together.

    y_{t,j} = b + Σ_{s=0,1,2} Σ_{i=0…4} W_{s,i} x_{stride · t + s, 2j + i - 2},   half as many bands

    A shift in pitch moves features to neighbouring bands, where the same filters see them.

    >>> TimeFrequencyConv(1, 8, 40)(torch.zeros(1, 40, 9)).shape
    torch.Size([1, 160, 4])
    """

    def __init__(self, channels: int, out_filters: int, bands: int, stride: int = 2):
        super().__init__()
        self.channels, self.bands, self.out_bands = channels, bands, (bands + 1) // 2
        self.filters = nn.Conv2d(
            channels, out_filters, (BAND_KERNEL, TIME_KERNEL), (2, stride),
            padding=(BAND_KERNEL // 2, 0),
        )  # fmt: skip
        # the attributes of an nn.Conv1d along time
        self.in_channels, self.out_channels = channels * bands, out_filters * self.out_bands
        self.kernel_size, self.stride = (TIME_KERNEL,), (stride,)

    def forward(self, x: Float[Tensor, "batch inputs time"]) -> Float[Tensor, "batch outputs less"]:
        return self.filters(x.unflatten(1, (self.channels, self.bands))).flatten(1, 2)


class ConvSubsampling(nn.Module):
    """Strided convolutions of kernel 3 along time, each followed by GELU.

    y_t = gelu(b + Σ_{s=0,1,2} W_s x_{stride · t + s - left}),   left = 2 if causal, else 1

    Frames after a sequence's length count as zero.

    Args:
        input_dim: number of features per frame.
        dim: width of the output.
        strides: one per convolution.
        causal: pad on the left only, so that output t needs no frame after factor · t and a stream
            gives the same result.
        filters: also convolve over the bands, with so many filters (`TimeFrequencyConv`), followed
            by a projection, a norm and GELU.

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
        """Frames per output: the product of the strides."""
        return torch.Size(self.strides).numel()

    def forward(
        self, x: Float[Tensor, "batch time inputs"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch shorter dim"]:
        if not x.shape[1]:
            raise ShapeError("x: needs 1 frame or more, got 0; try a longer recording")
        x = rearrange(x, "batch time inputs -> batch inputs time")
        for convolution, stride in zip(self.convolutions, self.strides, strict=True):
            if lengths is not None:
                x = x.masked_fill(~length_mask(lengths, x.shape[-1])[:, None], 0)
                lengths = (lengths + stride - 1) // stride
            x = F.gelu(convolution(F.pad(x, (self.left, TIME_KERNEL - 1 - self.left))))
        return self.out(rearrange(x, "batch dim shorter -> batch shorter dim"))

    def out_lengths(self, lengths: Int[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
        """The number of outputs for a number of frames: ⌈length / stride⌉ per stride.

        >>> ConvSubsampling(80, 16).out_lengths(torch.tensor([0, 1, 4, 5]))
        tensor([0, 1, 1, 2])
        """
        for stride in self.strides:
            lengths = (lengths + stride - 1) // stride
        return lengths


class GlobalCMVN(nn.Module):
    """Global mean and variance normalisation, measured once on training data.

    y = (x - mean) / std, per feature

    Unlike a mean over each recording, it works on a stream.

    >>> cmvn = GlobalCMVN(1)
    >>> cmvn.fit(torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([2]))
    >>> cmvn(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten()
    tensor([-1.,  0.,  1.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, input_dim: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(input_dim))
        self.register_buffer("std", torch.ones(input_dim))

    def fit(self, x: Float[Tensor, "batch time inputs"], lengths: Int[Tensor, " batch"]) -> None:
        """Measure mean and standard deviation over all valid frames."""
        frames = x[length_mask(lengths, x.shape[1])]
        if not len(frames):
            raise ShapeError(f"lengths: needs 1 frame or more in all, got {lengths.tolist()}")
        std = frames.std(0, correction=0)
        self.mean.copy_(frames.mean(0))
        self.std.copy_(torch.where(std > 0, std, 1))  # a constant feature stays finite

    def forward(self, x: Float[Tensor, "batch time inputs"]) -> Float[Tensor, "batch time inputs"]:
        return (x - self.mean) / self.std
