"""A labelled image."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class ImageExample(NamedTuple):
    """An image with values from 0 (black) to 1 (white), and its class index.

    >>> ImageExample(torch.zeros(1, 2, 2), 3).label
    3
    """

    image: Float[Tensor, "channel height width"]
    label: int
