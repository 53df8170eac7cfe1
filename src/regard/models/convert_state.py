"""What every converter from transformers shares: a state_dict that knows what was taken."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.nn.feedforward import Activation

Config = Mapping[str, Any]
Named = dict[str, Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


class State:
    """A state_dict that gives out each tensor once and knows what is left.

    >>> state = State({"bert.a": torch.ones(1), "b": torch.zeros(1)}, strip="bert.")
    >>> state.take("a")
    tensor([1.])
    >>> list(state.left)
    ['b']
    """

    def __init__(self, tensors: Mapping[str, Tensor], strip: str = ""):
        self.left = {name.removeprefix(strip): x for name, x in tensors.items()}

    def stripped(self, prefix: str) -> "State":
        """The same tensors without the name of the model they sit in."""
        return State(self.left, prefix)

    def __contains__(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str) -> Tensor:
        """The tensor of that name, which must be there."""
        if name not in self.left:
            close = get_close_matches(name, self.left, 1)
            hint = f"; nearest is {close[0]!r}" if close else ""
            raise ConfigError(f"state: needs {name!r}, got no such tensor{hint}")
        return self.left.pop(name)

    def layer(self, theirs: str, ours: str, *, turned: bool = False) -> Named:
        """Weight, and bias if there is one, of a linear map; `turned` if theirs is (in, out)."""
        weight = self.take(f"{theirs}.weight")
        named = {f"{ours}.weight": weight.mT if turned else weight}
        if f"{theirs}.bias" in self:
            named[f"{ours}.bias"] = self.take(f"{theirs}.bias")
        return named

    def norm(self, theirs: str, ours: str) -> Named:
        """Gain, and bias if there is one, of a norm."""
        named = {f"{ours}.gain": self.take(f"{theirs}.weight")}
        if f"{theirs}.bias" in self:
            named[f"{ours}.bias"] = self.take(f"{theirs}.bias")
        return named

    def untied(self, name: str, table: Tensor) -> Tensor | None:
        """Output weights of their own; None where there are none or they equal the table."""
        weight = self.left.pop(name, None)
        return None if weight is None or torch.equal(weight, table) else weight

    def drop(self, *endings: str) -> None:
        """Leave out what holds nothing learned, or a copy."""
        self.left = {name: x for name, x in self.left.items() if not name.endswith(endings)}

    def check_empty(self) -> None:
        """Raise a ConfigError if something was not taken."""
        if self.left:
            names = sorted(self.left)
            raise ConfigError(
                f"state: needs only tensors that we have a place for, got {len(names)} more: "
                f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
            )


def take_readout(state: State, named: Named, table: str = "embedding.table") -> bool:
    """Whether the output uses the table of the embedding; if not, its own weights are taken."""
    own = state.untied("lm_head.weight", named[table])
    if own is not None:
        named["readout.weight"] = own
    return own is None


def activation_of(name: str) -> Activation:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation: needs one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


def refuse(config: Config, *names: str) -> None:
    """Raise a ConfigError for an option that is on there and that we have no layer for."""
    for name in names:
        if config.get(name):
            raise ConfigError(f"{name}: needs to be off, we have no such layer, got {config[name]}")
