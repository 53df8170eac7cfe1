"""Multi-layer perceptron: a baseline for inputs of one fixed size."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models.config import check_choices, check_positive, register_model

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
