"""The state of torch's random generators, without synchronisation, and as JSON."""

from typing import NamedTuple

import torch
from torch import Tensor


class RngState(NamedTuple):
    """The state of the CPU generator and, on a GPU, of that device's generator."""

    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def current(cls, device: torch.device) -> "RngState":
        """The state now; of a GPU it is a seed and an offset on the CPU: no synchronisation."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda)

    def restore(self, device: torch.device) -> None:
        """Set the generators; a state without CUDA leaves a GPU's generator as it is."""
        torch.set_rng_state(self.cpu)
        if device.type == "cuda" and self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)

    def to_hex(self) -> dict[str, str]:
        """As hexadecimal strings, for JSON."""
        states = self._asdict().items()
        return {name: x.numpy().tobytes().hex() for name, x in states if x is not None}

    @classmethod
    def from_hex(cls, values: dict[str, str]) -> "RngState":
        """The state that `to_hex` wrote."""
        states = {name: list(bytes.fromhex(x)) for name, x in values.items()}
        return cls(**{name: torch.tensor(x, dtype=torch.uint8) for name, x in states.items()})
