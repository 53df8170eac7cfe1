"""Where a token stands: codes that are added, rotations, and tables that can be resized."""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError

COMPLEX_DTYPES = {
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}  # two numbers in one


def frequencies(
    dim: int, base: float = 10000.0, device: torch.device | None = None
) -> Float[Tensor, " pair"]:
    """One angle a step for each pair of features: base^(-2i/dim), i the pair's index, in float64.

    >>> frequencies(4)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    if dim < 2 or dim % 2:
        raise ShapeError(f"dim: needs an even number, sine and cosine share a pair, got {dim}")
    # made where it is used: a copy to a GPU would make every step wait
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


def sinusoidal(
    positions: Int[Tensor, "*batch"] | Float[Tensor, "*batch"], dim: int, base: float = 10000.0
) -> Float[Tensor, "*batch dim"]:
    """The code of each position, to be added to its embedding (Vaswani et al. 2017).

    PE(p, 2i) = sin(p · base^(-2i/dim)),   PE(p, 2i+1) = cos(p · base^(-2i/dim))

    >>> sinusoidal(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """
    angles = positions[..., None] * frequencies(dim, base, positions.device)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def sinusoidal_shift(step: float, dim: int, base: float = 10000.0) -> Float[Tensor, "dim dim"]:
    """The matrix R that moves every code by `step`: PE(p + step) = R PE(p), a rotation a pair.

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
) -> Float[Tensor, "*batch time head_dim"]:
    """Turn each pair of features by an angle that grows with position (Su et al. 2021).

    q_p · k_r then depends on p - r only. A pair is two neighbours, or with `halves` a feature of
    the first half and its twin in the second, as Llama's checkpoints have it.

    >>> apply_rope(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    tensor([[0.5403, 0.8415]])
    """
    angles = positions[..., None] * frequencies(x.shape[-1], base, x.device)
    if (
        x.device.type == "cpu"
        and not rotate_half
        and x.dtype in COMPLEX_DTYPES
        and x.stride(-1) == 1
    ):
        # a turn is a product of complex numbers: one pass over x instead of six, to the same bits
        turns = torch.polar(torch.ones_like(angles), angles).to(COMPLEX_DTYPES[x.dtype])
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2)
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    pattern = (
        "... (half pair) -> ... pair half" if rotate_half else "... (pair half) -> ... pair half"
    )
    a, b = rearrange(x, pattern, half=2).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
    return rearrange(turned, "... pair half -> " + pattern.partition(" ->")[0])


def lookup_positions(
    table: Float[Tensor, "length dim"], positions: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch dim"]:
    """Learned codes: the table's row for each position; beyond the table nothing was learned.

    >>> lookup_positions(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0]))
    tensor([[2.],
            [1.]])
    """
    # on a GPU the question would make every step wait; there the kernel raises by itself
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
    """A learned table for another image size: patch rows are resized as a picture (bicubic).

    The first `extra` rows (the CLS token) stay as they are. The same size gives the same table.

    >>> interpolate_positions(torch.arange(5.0)[:, None], (2, 2), (1, 1)).shape
    torch.Size([2, 1])
    """
    if table.shape[0] != prefix_tokens + old[0] * old[1]:
        raise ShapeError(
            f"table: needs {prefix_tokens} + {old[0]} · {old[1]} rows for this grid, got {table.shape[0]}"
        )
    if old == new:
        return table
    grid = rearrange(table[prefix_tokens:], "(h w) dim -> 1 dim h w", h=old[0])
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False)
    return torch.cat([table[:prefix_tokens], rearrange(grid, "1 dim h w -> (h w) dim")])
