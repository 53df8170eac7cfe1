"""The state of the random numbers, taken cheaply and written as JSON can hold it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Luck(NamedTuple):
    """The state of the generators that a training draws from; on a GPU, of that one too.

    >>> luck = luck_of(torch.device("cpu"))
    >>> first = torch.rand(2)
    >>> set_luck(luck, torch.device("cpu"))
    >>> torch.equal(torch.rand(2), first)
    True
    """

    cpu: Tensor
    cuda: Tensor | None = None

    def told(self) -> dict[str, str]:
        """As JSON can hold it."""
        some = {"cpu": self.cpu, "cuda": self.cuda}
        return {name: x.numpy().tobytes().hex() for name, x in some.items() if x is not None}


def luck_of(device: torch.device) -> Luck:
    """The state now; on a GPU it is a seed and a count on the host, nothing waits.

    >>> luck_of(torch.device("cpu")).cuda is None
    True
    """
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return Luck(torch.get_rng_state(), cuda)


def read_luck(told: dict[str, str]) -> Luck:
    """Luck that was told.

    >>> luck = luck_of(torch.device("cpu"))
    >>> torch.equal(read_luck(luck.told()).cpu, luck.cpu)
    True
    """
    states = {
        name: torch.tensor(list(bytes.fromhex(x)), dtype=torch.uint8) for name, x in told.items()
    }
    return Luck(states["cpu"], states.get("cuda"))


def set_luck(luck: Luck, device: torch.device) -> None:
    """Go on drawing from a state; one from another kind of device sets what it can.

    >>> set_luck(luck_of(torch.device("cpu")), torch.device("cpu"))
    """
    torch.set_rng_state(luck.cpu)
    if device.type == "cuda" and luck.cuda is not None:
        torch.cuda.set_rng_state(luck.cuda, device)
