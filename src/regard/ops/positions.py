"""Position encodings: sinusoidal, rotary (RoPE) and learned."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ConfigError, ShapeError

COMPLEX_DTYPES = {torch.float32: torch.complex64, torch.float64: torch.complex128}


@dataclass(frozen=True)
class RopeScaling:
    """Frequencies of rotary positions for longer inputs than a model was first trained on.

    f' = f · (keep + (1 - keep) / factor);   "linear": keep = 0 (position interpolation)
    "llama3": keep = (r - low) / (high - low) within 0 and 1, r = f · original_positions / 2π turns
    "yarn": keep falls linearly from the pair with `high` turns to that with `low`

    `amplitude` multiplies the rotated features, as YaRN's attention factor does.

    >>> frequencies(4, scaling=RopeScaling("linear", 2.0))
    tensor([0.5000, 0.0050], dtype=torch.float64)
    """

    rope_type: Literal["linear", "llama3", "yarn"]
    factor: float
    original_positions: int = 8192
    low: float = 1.0
    high: float = 4.0
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        if self.rope_type not in ("linear", "llama3", "yarn"):
            raise ConfigError(f"rope_type: needs linear, llama3 or yarn, got {self.rope_type!r}")
        if not (self.factor > 0 and self.original_positions > 0 and 0 < self.low < self.high):
            raise ConfigError(
                "rope_scaling: needs factor and original_positions above 0 and 0 < low < high, "
                f"got {self}"
            )

    def unscaled(
        self, rates: Float[Tensor, " pair"], base: float
    ) -> Float[Tensor, " pair"] | float:
        """The share of each frequency that is not divided by the factor."""
        if self.rope_type == "linear":
            return 0.0
        if self.rope_type == "llama3":
            turns = rates * self.original_positions / (2 * math.pi)
            return ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        # the pair that turns so often over the original positions, rounded to whole pairs
        pairs = len(rates)
        first, last = (
            pairs * math.log(self.original_positions / (turns * 2 * math.pi)) / math.log(base)
            for turns in (self.high, self.low)
        )
        start, end = max(math.floor(first), 0), min(math.ceil(last), 2 * pairs - 1)
        at = torch.arange(pairs, dtype=rates.dtype, device=rates.device)
        return 1 - ((at - start) / (max(end - start, 0) or 0.001)).clamp(0, 1)


def frequencies(
    dim: int,
    base: float = 10000.0,
    device: torch.device | None = None,
    scaling: RopeScaling | None = None,
) -> Float[Tensor, " pair"]:
    """The frequency of each pair of features, base^(-2i/dim) for pair i, in float64.

    >>> frequencies(4)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    if dim < 2 or dim % 2:
        raise ShapeError(f"dim: needs an even number, sine and cosine share a pair, got {dim}")
    # created on its device: a copy to a GPU would synchronise every step
    rates = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    if scaling is None:
        return rates
    keep = scaling.unscaled(rates, base)
    return rates * (keep + (1 - keep) / scaling.factor)


def sinusoidal(
    positions: Int[Tensor, "*batch"] | Float[Tensor, "*batch"], dim: int, base: float = 10000.0
) -> Float[Tensor, "*batch dim"]:
    """Sinusoidal position encodings (Vaswani et al. 2017), to be added to embeddings.

    PE(p, 2i) = sin(p · base^(-2i/dim)),   PE(p, 2i+1) = cos(p · base^(-2i/dim))

    >>> sinusoidal(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """
    angles = positions[..., None] * frequencies(dim, base, positions.device)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def sinusoidal_shift(step: float, dim: int, base: float = 10000.0) -> Float[Tensor, "dim dim"]:
    """The matrix R that shifts an encoding: PE(p + step) = R PE(p), one rotation per pair.

    >>> torch.allclose(sinusoidal_shift(3, 4) @ sinusoidal(torch.tensor(2), 4),
    ...                sinusoidal(torch.tensor(5), 4))
    True
    """
    angles = step * frequencies(dim, base)
    sin, cos = angles.sin(), angles.cos()
    pairs = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
    return torch.block_diag(*pairs)


def apply_rope(
    x: Float[Tensor, "*batch time head_dim"],
    positions: Int[Tensor, "*positions time"],
    base: float = 10000.0,
    *,
    rotate_half: bool = False,
    rope_dim: int | None = None,
    scaling: RopeScaling | None = None,
) -> Float[Tensor, "*batch time head_dim"]:
    """Rotary position embedding (Su et al. 2021): rotate each pair of features by its position.

    q_p · k_r then depends on p - r only. A pair is two neighbouring features, or with `rotate_half`
    features i and i + dim/2, as in Llama's checkpoints. With `rope_dim`, only that many features
    are rotated.

    >>> apply_rope(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    tensor([[0.5403, 0.8415]])
    """
    if rope_dim is not None and rope_dim != x.shape[-1]:
        part, rest = x[..., :rope_dim].contiguous(), x[..., rope_dim:]
        turned = apply_rope(part, positions, base, rotate_half=rotate_half, scaling=scaling)
        return torch.cat([turned, rest], -1)
    angles = positions[..., None] * frequencies(x.shape[-1], base, x.device, scaling)
    amplitude = 1.0 if scaling is None else scaling.amplitude
    if (
        x.device.type == "cpu"
        and not rotate_half
        and x.dtype in COMPLEX_DTYPES
        and x.stride(-1) == 1
    ):
        # a rotation is a complex product: one pass over x instead of six, bit for bit the same
        rotations = torch.polar(torch.full_like(angles, amplitude), angles).to(
            COMPLEX_DTYPES[x.dtype]
        )
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotations).flatten(-2)
    sin, cos = ((amplitude * turn).to(x.dtype) for turn in (angles.sin(), angles.cos()))
    features = "... (half pair)" if rotate_half else "... (pair half)"
    a, b = rearrange(x, f"{features} -> ... pair half", half=2).unbind(-1)
    rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
    return rearrange(rotated, f"... pair half -> {features}")


def lookup_positions(
    table: Float[Tensor, "length dim"], positions: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch dim"]:
    """Learned position embeddings: the row of the table for each position.

    >>> lookup_positions(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0])).tolist()
    [[2.0], [1.0]]
    """
    # a check on a GPU would synchronise every step; there the kernel raises by itself
    last = int(positions.max()) if positions.numel() and not positions.is_cuda else 0
    if last >= table.shape[0]:
        raise ShapeError(
            f"positions: needs at most {table.shape[0] - 1}, the end of the learned table, "
            f"got {last}; try a shorter input, or sinusoidal or rotary positions"
        )
    return F.embedding(positions, table)


def interpolate_positions(
    table: Float[Tensor, "length dim"],
    old: tuple[int, int],
    new: tuple[int, int],
    *,
    prefix_tokens: int = 1,
) -> Float[Tensor, "resized dim"]:
    """Resize learned position embeddings to another image size, by bicubic interpolation.

    The first `prefix_tokens` rows (the CLS token) stay. The same size returns the same table.

    >>> interpolate_positions(torch.arange(5.0)[:, None], (2, 2), (1, 1)).shape
    torch.Size([2, 1])
    """
    if table.shape[0] != prefix_tokens + old[0] * old[1]:
        raise ShapeError(
            f"table: needs {prefix_tokens} + {old[0]} · {old[1]} rows for this grid, "
            f"got {table.shape[0]}"
        )
    if old == new:
        return table
    grid = rearrange(table[prefix_tokens:], "(h w) dim -> 1 dim h w", h=old[0])
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False)
    return torch.cat([table[:prefix_tokens], rearrange(grid, "1 dim h w -> (h w) dim")])
