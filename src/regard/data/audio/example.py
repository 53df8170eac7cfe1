"""A transcribed recording."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class AudioExample(NamedTuple):
    """A waveform from -1 to 1, its transcript, and the sample at which each character ends.

    >>> AudioExample(torch.zeros(8000), "", 8000).rate
    8000
    """

    wave: Float[Tensor, " sample"]
    text: str
    rate: int
    char_ends: tuple[int, ...] = ()  # empty where unknown
