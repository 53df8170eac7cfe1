"""Splitting images into square patches, and back."""

from einops import rearrange
from jaxtyping import Shaped
from torch import Tensor

from regard.errors import ShapeError


def patchify(
    images: Shaped[Tensor, "*batch channel height width"], patch_size: int
) -> Shaped[Tensor, "*batch time pixel"]:
    """Split images into flattened patches, row by row: N = H·W / P² patches of P²·C numbers.

    >>> patchify(torch.arange(16).view(1, 4, 4), 2).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """
    grid = patch_grid(images.shape[-2], images.shape[-1], patch_size)
    pattern = "... channel (h row) (w col) -> ... (h w) (channel row col)"
    return rearrange(images, pattern, h=grid[0], w=grid[1])


def unpatchify(
    patches: Shaped[Tensor, "*batch time pixel"], patch_size: int, grid: tuple[int, int]
) -> Shaped[Tensor, "*batch channel height width"]:
    """The inverse of `patchify`.

    >>> unpatchify(patchify(torch.arange(16).view(1, 4, 4), 2), 2, (2, 2)).flatten()
    tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15])
    """
    if patches.shape[-2] != grid[0] * grid[1] or patches.shape[-1] % patch_size**2:
        raise ShapeError(
            f"patches: needs {grid[0]} · {grid[1]} patches of a multiple of {patch_size}² numbers, "
            f"got {tuple(patches.shape[-2:])}"
        )
    pattern = "... (h w) (channel row col) -> ... channel (h row) (w col)"
    return rearrange(patches, pattern, h=grid[0], w=grid[1], row=patch_size, col=patch_size)


def patch_grid(height: int, width: int, patch_size: int) -> tuple[int, int]:
    """The number of patches of an image, down and across.

    >>> patch_grid(224, 384, 16)
    (14, 24)
    """
    if patch_size < 1:
        raise ShapeError(f"patch_size: needs 1 or more, got {patch_size}")
    if height % patch_size or width % patch_size or not height or not width:
        near = [max(1, round(side / patch_size)) * patch_size for side in (height, width)]
        raise ShapeError(
            f"images: needs height and width in multiples of patch_size={patch_size}, "
            f"got {height} by {width}; try resizing or padding to {near[0]} by {near[1]}"
        )
    return height // patch_size, width // patch_size
