"""Vision Transformer (Dosovitskiy et al. 2020)."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.config import StackConfig, check_positive, make_encoder, register_model
from regard.nn import ClassToken, PatchEmbedding, xavier_linear
from regard.nn.embedding import Images
from regard.ops import interpolate_positions, patch_grid


@dataclass(frozen=True, kw_only=True)
class VisionConfig(StackConfig):
    """Config of a Vision Transformer; `image_size` is the side of the square training images.

    >>> VisionConfig(classes=9, image_size=224, patch_size=16, layers=1, dim=8, heads=2).tokens
    197
    """

    classes: int
    image_size: int
    patch_size: int
    channels: int = 3
    head: Literal["linear", "mlp"] = "linear"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "classes", "image_size", "patch_size", "channels")
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"image_size: needs a multiple of patch_size={self.patch_size}, "
                f"got {self.image_size}; "
                f"try {max(1, round(self.image_size / self.patch_size)) * self.patch_size}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches, vertically and horizontally."""
        return patch_grid(self.image_size, self.image_size, self.patch_size)

    @property
    def tokens(self) -> int:
        """Sequence length: all patches and the class token."""
        return self.grid[0] * self.grid[1] + 1


@register_model(VisionConfig)
class VisionTransformer(nn.Module):
    """Image classifier: a Transformer encoder over patches and a class token.

    z = [cls; W patch_1 … W patch_N] + positions,   logits = head(encoder(z)_cls)

    Learned positions are interpolated for images of another size. The head is one linear layer;
    "mlp" puts a tanh layer before it.

    >>> model = VisionTransformer(vision_tiny(classes=10))
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.config, dim = config, config.dim
        self.patches = PatchEmbedding(config.channels, dim, config.patch_size)
        self.cls = ClassToken(dim)
        self.positions = nn.Parameter(torch.empty(config.tokens, dim))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = make_encoder(config)
        self.pre_logits = xavier_linear(dim, dim) if config.head == "mlp" else None
        self.head = xavier_linear(dim, config.classes)

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        x = self.features(images)
        return self.head(x if self.pre_logits is None else self.pre_logits(x).tanh())

    def features(self, images: Images) -> Float[Tensor, "batch dim"]:
        """Input of the head: the class token after the encoder."""
        return self.encode(images)[:, 0]

    def encode(self, images: Images) -> Float[Tensor, "batch time dim"]:
        """Encoder output: the class token, then the patches row by row."""
        x = self.cls(self.patches(images))
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        x = x + interpolate_positions(self.positions, self.config.grid, grid)
        return self.encoder(self.dropout(x))


def vision_tiny(classes: int, **changes) -> VisionConfig:
    """Preset for grey 28 × 28 images and a CPU: 49 patches, 4 layers of width 64.

    >>> vision_tiny(classes=10).tokens
    50
    """
    sizes = {"image_size": 28, "patch_size": 4, "channels": 1, "layers": 4, "dim": 64, "heads": 4}
    return vision_base(classes, **sizes | {"dropout": 0.1} | changes)


def vision_small(classes: int, **changes) -> VisionConfig:
    """Preset ViT-S/16: half the width of the base model, 22 million parameters.

    >>> vision_small(classes=1000).dim
    384
    """
    return vision_base(classes, **{"dim": 384, "heads": 6} | changes)


def vision_base(classes: int, **changes) -> VisionConfig:
    """Preset ViT-B/16, the base model of the paper: 86 million parameters.

    >>> vision_base(classes=1000).tokens
    197
    """
    preset = VisionConfig(
        classes=classes, image_size=224, patch_size=16, layers=12, dim=768, heads=12
    )
    return replace(preset, **changes)
