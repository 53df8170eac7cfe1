"""Whole networks, their configs and presets."""

from regard.models.mlp import MLP, MLPConfig
from regard.models.resnet import ResNet, ResNetConfig, resnet_of_size

__all__ = [
    "MLP",
    "MLPConfig",
    "ResNet",
    "ResNetConfig",
    "resnet_of_size",
]
