"""Patch embedding and class token of vision transformers."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.ops.patches import patch_grid

Images = Float[Tensor, "batch channel height width"]


class PatchEmbedding(nn.Module):
    """Patch embedding: a convolution whose kernel and stride are the patch size.

    token_n = W · flatten(patch_n) + b

    It equals a linear layer on flattened patches; `to_linear` and `from_linear` convert between.

    >>> PatchEmbedding(channels=3, dim=768, patch_size=16)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 196, 768])
    """

    def __init__(self, channels: int, dim: int, patch_size: int):
        super().__init__()
        self.patch_size = patch_size
        self.project = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Images) -> Float[Tensor, "batch time dim"]:
        channels = self.project.in_channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ShapeError(
                f"images: needs (batch, {channels}, height, width), got {tuple(images.shape)}"
            )
        height, width = images.shape[-2:]
        patch_grid(height, width, self.patch_size)  # raises: a convolution would drop the edges
        return rearrange(self.project(images), "batch dim h w -> batch (h w) dim")

    def to_linear(self) -> nn.Linear:
        """The same layer for flattened patches (`ops.patchify`)."""
        weight = self.project.weight
        linear = nn.Linear(weight[0].numel(), len(weight)).to(weight)
        linear.load_state_dict({"weight": weight.flatten(1), "bias": self.project.bias})
        return linear

    @classmethod
    def from_linear(cls, linear: nn.Linear, channels: int) -> "PatchEmbedding":
        """The convolution that equals `linear` on flattened square patches.

        >>> PatchEmbedding.from_linear(torch.nn.Linear(12, 8), channels=3).patch_size
        2
        """
        pixels = linear.in_features / channels
        patch_size = round(pixels**0.5)
        if patch_size * patch_size != pixels:
            raise ShapeError(
                f"linear: needs channels · patch_size² inputs, got {linear.in_features} for "
                f"channels={channels}"
            )
        embedding = cls(channels, linear.out_features, patch_size).to(linear.weight)
        shape = embedding.project.weight.shape
        bias = torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias
        embedding.project.load_state_dict({"weight": linear.weight.view(shape), "bias": bias})
        return embedding


class ClassToken(nn.Module):
    """A learned class token, prepended to the sequence.

    [x_1 … x_N] → [cls; x_1 … x_N]

    >>> ClassToken(8)(torch.zeros(2, 196, 8)).shape
    torch.Size([2, 197, 8])
    """

    def __init__(self, dim: int):
        super().__init__()
        self.token = nn.Parameter(torch.empty(dim))
        nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, x: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch more dim"]:
        return torch.cat([self.token.to(x.dtype).expand(len(x), 1, -1), x], 1)
