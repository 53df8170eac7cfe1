"""The state of the random numbers, taken cheaply and written as JSON can hold it."""

from typing import NamedTuple

import torch
from torch import Tensor


class RngState(NamedTuple):
    """The state of the generators that a training draws from; on a GPU, of that one too.

    >>> luck = get_rng_state(torch.device("cpu"))
    >>> first = torch.rand(2)
    >>> set_rng_state(luck, torch.device("cpu"))
    >>> torch.equal(torch.rand(2), first)
    True
    """

    cpu: Tensor
    cuda: Tensor | None = None

    def to_hex(self) -> dict[str, str]:
        """As JSON can hold it."""
        some = {"cpu": self.cpu, "cuda": self.cuda}
        return {name: x.numpy().tobytes().hex() for name, x in some.items() if x is not None}


def get_rng_state(device: torch.device) -> RngState:
    """The state now; on a GPU it is a seed and a count on the host, nothing waits.

    >>> get_rng_state(torch.device("cpu")).cuda is None
    True
    """
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return RngState(torch.get_rng_state(), cuda)


def parse_rng_state(values: dict[str, str]) -> RngState:
    """Luck that was told.

    >>> luck = get_rng_state(torch.device("cpu"))
    >>> torch.equal(parse_rng_state(luck.to_hex()).cpu, luck.cpu)
    True
    """
    states = {
        name: torch.tensor(list(bytes.fromhex(x)), dtype=torch.uint8) for name, x in values.items()
    }
    return RngState(states["cpu"], states.get("cuda"))


def set_rng_state(state: RngState, device: torch.device) -> None:
    """Go on drawing from a state; one from another kind of device sets what it can.

    >>> set_rng_state(get_rng_state(torch.device("cpu")), torch.device("cpu"))
    """
    torch.set_rng_state(state.cpu)
    if device.type == "cuda" and state.cuda is not None:
        torch.cuda.set_rng_state(state.cuda, device)
