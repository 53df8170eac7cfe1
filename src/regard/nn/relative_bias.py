"""Relative position biases as layers: each holds a table and returns a `Bias` for attention."""

import torch
from torch import Tensor, nn

from regard.ops import ALiBi, Bias, Buckets, RelativeKeys, Toeplitz, alibi_slopes


class RelativeBias(nn.Module):
    """Base class; calling a layer returns the bias with its learned table.

    >>> layer = ToeplitzBias(heads=2, radius=1)
    >>> isinstance(layer, RelativeBias), type(layer()).__name__
    (True, 'Toeplitz')
    """

    def forward(self) -> Bias:
        raise NotImplementedError


class BucketBias(RelativeBias):
    """T5's relative bias: one learned number per head and distance bucket.

    s_ij += table[bucket(j - i), head]

    >>> layer = BucketBias(heads=2, buckets=8)
    >>> layer.table.shape, layer().bidirectional
    (torch.Size([8, 2]), True)
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        self.bidirectional, self.max_distance = bidirectional, max_distance

    def forward(self) -> Buckets:
        return Buckets(self.table, self.bidirectional, self.max_distance)


class ToeplitzBias(RelativeBias):
    """One learned number per head and relative position, clipped at `radius`.

    s_ij += table[head, clip(j - i)]

    >>> ToeplitzBias(heads=2, radius=3).table.shape
    torch.Size([2, 7])
    """

    def __init__(self, heads: int, *, radius: int = 16):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(heads, 2 * radius + 1))

    def forward(self) -> Toeplitz:
        return Toeplitz(self.table)


class RelativeKeyBias(RelativeBias):
    """Relative position keys of Shaw et al. 2018, clipped at `radius`.

    s_ij += scale · q_i · table[clip(j - i)]

    >>> RelativeKeyBias(head_dim=4, radius=3).table.shape
    torch.Size([7, 4])
    """

    def __init__(self, head_dim: int, *, radius: int = 16):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * radius + 1, head_dim) * head_dim**-0.5)

    def forward(self) -> RelativeKeys:
        return RelativeKeys(self.table)


class ALiBiBias(RelativeBias):
    """ALiBi: a linear penalty on distance with one fixed slope per head.

    s_ij -= slope_head · |i - j|

    >>> ALiBiBias(heads=2)().slopes
    tensor([0.0625, 0.0039])
    """

    slopes: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self) -> ALiBi:
        return ALiBi(self.slopes)
