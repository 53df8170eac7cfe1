"""What every converter from transformers shares: a state_dict that knows what was taken."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.nn.feed_forward import Activation

HubConfig = Mapping[str, Any]
NamedTensors = dict[str, Tensor]

HUB_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


class StateDictReader:
    """A state_dict that gives out each tensor once and knows what is left.

    >>> state = StateDictReader({"bert.a": torch.ones(1), "b": torch.zeros(1)}, prefix="bert.")
    >>> state.take("a")
    tensor([1.])
    >>> list(state.remaining)
    ['b']
    """

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str = ""):
        self.remaining = {name.removeprefix(prefix): x for name, x in tensors.items()}

    def without_prefix(self, prefix: str) -> "StateDictReader":
        """The same tensors without the name of the model they sit in."""
        return StateDictReader(self.remaining, prefix)

    def __contains__(self, name: str) -> bool:
        return name in self.remaining

    def take(self, name: str) -> Tensor:
        """The tensor of that name, which must be there."""
        if name not in self.remaining:
            close = get_close_matches(name, self.remaining, 1)
            hint = f"; nearest is {close[0]!r}" if close else ""
            raise ConfigError(f"state: needs {name!r}, got no such tensor{hint}")
        return self.remaining.pop(name)

    def take_linear(self, hub_name: str, name: str, *, transposed: bool = False) -> NamedTensors:
        """Weight, and bias if there is one, of a linear map; `turned` if theirs is (in, out)."""
        weight = self.take(f"{hub_name}.weight")
        named = {f"{name}.weight": weight.mT if transposed else weight}
        if f"{hub_name}.bias" in self:
            named[f"{name}.bias"] = self.take(f"{hub_name}.bias")
        return named

    def take_norm(self, hub_name: str, name: str) -> NamedTensors:
        """Gain, and bias if there is one, of a norm."""
        named = {f"{name}.gain": self.take(f"{hub_name}.weight")}
        if f"{hub_name}.bias" in self:
            named[f"{name}.bias"] = self.take(f"{hub_name}.bias")
        return named

    def take_untied(self, name: str, table: Tensor) -> Tensor | None:
        """Output weights of their own; None where there are none or they equal the table."""
        weight = self.remaining.pop(name, None)
        return None if weight is None or torch.equal(weight, table) else weight

    def drop(self, *suffixes: str) -> None:
        """Leave out what holds nothing learned, or a copy."""
        self.remaining = {
            name: x for name, x in self.remaining.items() if not name.endswith(suffixes)
        }

    def check_empty(self) -> None:
        """Raise a ConfigError if something was not taken."""
        if self.remaining:
            names = sorted(self.remaining)
            raise ConfigError(
                f"state: needs only tensors that we have a place for, got {len(names)} more: "
                f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
            )


def take_readout(
    state: StateDictReader, named: NamedTensors, table: str = "embedding.token_embeddings"
) -> bool:
    """Whether the output uses the table of the embedding; if not, its own weights are taken."""
    own = state.take_untied("lm_head.weight", named[table])
    if own is not None:
        named["readout.weight"] = own
    return own is None


def convert_activation(name: str) -> Activation:
    """Our name of an activation."""
    if name not in HUB_ACTIVATIONS:
        raise ConfigError(f"activation: needs one of {', '.join(HUB_ACTIVATIONS)}, got {name!r}")
    return HUB_ACTIVATIONS[name]


def check_unsupported(config: HubConfig, *names: str) -> None:
    """Raise a ConfigError for an option that is on there and that we have no layer for."""
    for name in names:
        if config.get(name):
            raise ConfigError(f"{name}: needs to be off, we have no such layer, got {config[name]}")
