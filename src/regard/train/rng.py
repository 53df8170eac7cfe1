"""The state of torch's random generators, without synchronisation, and as JSON."""

from typing import NamedTuple

import torch
from torch import Tensor


class RngState(NamedTuple):
    """The state of the CPU generator and, on a GPU, of that device's generator.

    >>> state = get_rng_state(torch.device("cpu"))
    >>> first = torch.rand(2)
    >>> set_rng_state(state, torch.device("cpu"))
    >>> torch.equal(torch.rand(2), first)
    True
    """

    cpu: Tensor
    cuda: Tensor | None = None

    def to_hex(self) -> dict[str, str]:
        """As hexadecimal strings, for JSON."""
        states = {"cpu": self.cpu, "cuda": self.cuda}
        return {name: x.numpy().tobytes().hex() for name, x in states.items() if x is not None}


def get_rng_state(device: torch.device) -> RngState:
    """The current state; of a GPU it is a seed and an offset on the CPU: no synchronisation.

    >>> get_rng_state(torch.device("cpu")).cuda is None
    True
    """
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return RngState(torch.get_rng_state(), cuda)


def parse_rng_state(values: dict[str, str]) -> RngState:
    """The state that `RngState.to_hex` wrote.

    >>> state = get_rng_state(torch.device("cpu"))
    >>> torch.equal(parse_rng_state(state.to_hex()).cpu, state.cpu)
    True
    """
    states = {
        name: torch.tensor(list(bytes.fromhex(x)), dtype=torch.uint8) for name, x in values.items()
    }
    return RngState(states["cpu"], states.get("cuda"))


def set_rng_state(state: RngState, device: torch.device) -> None:
    """Set the generators; a state without CUDA leaves a GPU's generator as it is.

    >>> set_rng_state(get_rng_state(torch.device("cpu")), torch.device("cpu"))
    """
    torch.set_rng_state(state.cpu)
    if device.type == "cuda" and state.cuda is not None:
        torch.cuda.set_rng_state(state.cuda, device)
