"""Pictures held as bytes where the model is, moved, mirrored and erased in part when read."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from regard.data.made import Batch, Made, luck
from regard.errors import ConfigError, ShapeError


class PictureBatches(Made):
    """Pictures that are all in memory, in batches of `size`; each time a picture looks different.

    Bytes stay on the device of the model, a batch of floats from 0 to 1 is made there: the
    reading of pictures never waits for a disk or a bus.

    >>> pictures = torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)
    >>> batch = next(iter(PictureBatches(pictures, torch.arange(4), size=4)))
    >>> batch["pixels"].shape, sorted(batch["label"].tolist())
    (torch.Size([4, 1, 2, 2]), [0, 1, 2, 3])
    """

    def __init__(
        self,
        pictures: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
        *,
        size: int,
        shift: int = 0,
        flip: bool = False,
        erase: float = 0.0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        if len(pictures) != len(labels) or not len(labels):
            raise ShapeError(f"labels: needs one for each of {len(pictures)}, got {len(labels)}")
        if size < 1:
            raise ConfigError(f"size: needs 1 or more, got {size}")
        super().__init__(self._batch, seed=seed, rank=rank, world=world)
        self.pictures, self.labels = pictures, labels
        self.size, self.shift, self.flip, self.erase = size, shift, flip, erase
        self._order = lru_cache(2)(self._turn)

    def _turn(self, turn: int) -> Tensor:
        order = torch.randperm(len(self.labels), generator=luck(self.seed, "turn", turn))
        return order.to(self.labels.device)

    def _batch(self, number: int) -> Batch:
        chosen = self._chosen(number * self.size)
        chance = luck(self.seed, "batch", number)
        pixels = altered(
            self.pictures[chosen], chance, shift=self.shift, flip=self.flip, erase=self.erase
        )
        return {"pixels": pixels.float() / 255, "label": self.labels[chosen]}

    def _chosen(self, at: int) -> Tensor:
        """Which pictures: all of them in a new order, again and again."""
        parts, wanted = [], self.size
        while wanted:
            turn, first = divmod(at, len(self.labels))
            parts.append(self._order(turn)[first : first + wanted])
            at, wanted = at + len(parts[-1]), wanted - len(parts[-1])
        return torch.cat(parts)


def altered(
    pictures: UInt8[Tensor, "batch channel height width"] | Float[Tensor, "batch channel h w"],
    chance: torch.Generator,
    *,
    shift: int = 0,
    flip: bool = False,
    erase: float = 0.0,
) -> Tensor:
    """Each picture moved by up to `shift` pixels, mirrored or not, and a square of it made black.

    A square of side 0 to erase · height; what comes in from outside is black. Chances are drawn on
    the CPU, so that every device gets the same pictures.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> seen = {tuple(altered(x, rg.data.luck(n), flip=True).flatten().tolist()) for n in range(9)}
    >>> sorted(seen)
    [(0.0, 1.0, 2.0, 3.0), (1.0, 0.0, 3.0, 2.0)]
    """
    batch, channels, height, width = pictures.shape

    def drawn(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (batch, 1), generator=chance)

    rows, columns = torch.arange(height).repeat(batch, 1), torch.arange(width).repeat(batch, 1)
    if flip:
        columns = torch.where(drawn(0, 1) > 0, width - 1 - columns, columns)
    square = torch.zeros(batch, height, width, dtype=torch.bool)
    if erase:
        side = drawn(0, round(erase * height))
        top, left = drawn(0, height - 1) - side // 2, drawn(0, width - 1) - side // 2
        down, across = torch.arange(height), torch.arange(width)
        inside = (down >= top) & (down < top + side), (across >= left) & (across < left + side)
        square = inside[0][:, :, None] & inside[1][:, None, :]
    if shift:
        rows, columns = rows + drawn(0, 2 * shift), columns + drawn(0, 2 * shift)
        pictures = F.pad(pictures, (shift, shift, shift, shift))
    whole = pictures.shape[-1]
    places = (rows[:, :, None] * whole + columns[:, None, :]).to(pictures.device)
    places = places.flatten(1)[:, None].expand(-1, channels, -1)
    moved = pictures.flatten(2).gather(2, places).unflatten(2, (height, width))
    return moved.masked_fill(square[:, None].to(moved.device), 0) if erase else moved
