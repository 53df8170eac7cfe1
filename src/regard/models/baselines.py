"""Baselines: a multi-layer perceptron, and a ResNet for small images, sized by parameter count."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models.config import check_choices, check_positive, register_model
from regard.nn.embedding import Images

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "identity": nn.Identity}


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """Config of a multi-layer perceptron; `layers` counts the hidden ones.

    >>> MLPConfig(inputs=784, classes=10).hidden
    256
    """

    inputs: int
    classes: int
    hidden: int = 256
    layers: int = 2
    activation: Literal["relu", "tanh", "gelu", "identity"] = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "inputs", "classes", "hidden")
        if self.layers < 0:
            raise ConfigError(f"layers: needs 0 or more, got {self.layers}")


@register_model(MLPConfig)
class MLP(nn.Module):
    """Fully connected network over flattened inputs.

    h_l = φ(W_l h_{l-1} + b_l),   h_0 = flatten(x),   logits = W h_L + b

    >>> MLP(MLPConfig(inputs=784, classes=10))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: MLPConfig):
        super().__init__()
        self.config = config
        widths = [config.inputs] + [config.hidden] * config.layers
        self.layers = nn.ModuleList(
            nn.Linear(wide, config.hidden) for wide in widths[: config.layers]
        )
        self.activation = _ACTIVATIONS[config.activation]()
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(widths[-1], config.classes)

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        h = x.flatten(1)
        if h.shape[1] != self.config.inputs:
            raise ShapeError(
                f"x: needs inputs={self.config.inputs} values per example, got "
                f"{h.shape[1]}; try resizing, or a model that takes any size"
            )
        for layer in self.layers:
            h = self.dropout(self.activation(layer(h)))
        return self.head(h)


def stage_widths(width: int, stages: int) -> tuple[int, ...]:
    """Channels per stage of a ResNet whose last one has this width: half per earlier stage."""
    if width < 1 << stages - 1:
        raise ConfigError(
            f"width: needs at least {1 << stages - 1} to be halved {stages - 1} times, got {width}"
        )
    return tuple(width >> stages - 1 - stage for stage in range(stages))


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Config of a ResNet; `width` is that of the last stage and halves per earlier stage.

    >>> ResNetConfig(classes=10, width=64).widths
    (16, 32, 64)
    """

    classes: int
    channels: int = 1
    width: int = 64
    stages: int = 3
    blocks: int = 2  # per stage

    def __post_init__(self) -> None:
        check_positive(self, "classes", "channels", "width", "stages", "blocks")
        stage_widths(self.width, self.stages)  # raises if it cannot be halved so often

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels per stage."""
        return stage_widths(self.width, self.stages)


@register_model(ResNetConfig)
class ResNet(nn.Module):
    """Residual convolutional network (He et al. 2016).

    y = relu(x + bn(conv(relu(bn(conv(x))))))

    The 3 × 3 stem keeps the resolution, for small images; each later stage halves it. Global
    average pooling and one linear layer follow, so any image size works.

    >>> ResNet(ResNetConfig(classes=10))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config, widths = config, config.widths
        self.stem = convolution(config.channels, widths[0])
        self.blocks = nn.Sequential()
        for stage, width in enumerate(widths):
            for block in range(config.blocks):
                first = block == 0 and stage > 0
                self.blocks.append(
                    ResidualBlock(widths[stage - first], width, stride=2 if first else 1)
                )
        self.head = nn.Linear(widths[-1], config.classes)

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(images))

    def features(self, images: Images) -> Float[Tensor, "batch dim"]:
        """Input of the head: the mean of each channel over the image."""
        if images.ndim != 4 or images.shape[1] != self.config.channels or 0 in images.shape[2:]:
            raise ShapeError(
                f"images: needs (batch, {self.config.channels}, height, width), "
                f"got {tuple(images.shape)}"
            )
        return self.blocks(self.stem(images).relu()).mean((-2, -1))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, which is a 1 × 1 convolution where the size changes.

    >>> ResidualBlock(8, 16, stride=2)(torch.zeros(1, 8, 7, 7)).shape
    torch.Size([1, 16, 4, 4])
    """

    def __init__(self, inputs: int, width: int, stride: int = 1):
        super().__init__()
        self.stride = stride
        self.first = convolution(inputs, width, stride=stride)
        self.second = convolution(width, width)
        unchanged = inputs == width and stride == 1
        self.shortcut = nn.Identity() if unchanged else convolution(inputs, width, 1, stride)

    def forward(
        self, x: Float[Tensor, "batch inputs h w"], mask: Bool[Tensor, "batch 1 hh 1"] | None = None
    ) -> Float[Tensor, "batch width hh ww"]:
        """The output, 0 where `mask` is False: so padding does not reach what is beside it."""
        h = self.first(x).relu()
        h = h if mask is None else h * mask
        y = (self.shortcut(x) + self.second(h)).relu()
        return y if mask is None else y * mask


def resnet_of_size(parameters: int, base: ResNetConfig) -> ResNetConfig:
    """The config whose width comes closest to a number of parameters.

    >>> config = resnet_of_size(200_000, ResNetConfig(classes=10))
    >>> config.width, sum(p.numel() for p in ResNet(config).parameters())
    (69, 201456)
    """
    least = 1 << base.stages - 1
    if parameters < (fewest := _count(base, least)):
        raise ConfigError(
            f"parameters: needs at least {fewest} for {base.stages} stages of {base.blocks} "
            f"blocks, got {parameters}; try fewer stages or blocks"
        )
    widths = range(least, isqrt(parameters) + 2)  # one convolution has 9 · width² parameters
    above = bisect_left(widths, parameters, key=lambda width: _count(base, width))
    nearest = widths[max(0, above - 1) : above + 1]
    return replace(base, width=min(nearest, key=lambda n: abs(_count(base, n) - parameters)))


def _count(base: ResNetConfig, width: int) -> int:
    with torch.device("meta"):  # shapes only
        return sum(p.numel() for p in ResNet(replace(base, width=width)).parameters())


def convolution(inputs: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size, or divides it by the stride, with batch norm.

    >>> convolution(3, 8, stride=2)(torch.zeros(1, 3, 9, 9)).shape
    torch.Size([1, 8, 5, 5])
    """
    # a bias would have no effect before the norm
    return nn.Sequential(
        nn.Conv2d(inputs, width, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
    )
