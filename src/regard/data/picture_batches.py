"""Pictures held as bytes where the model is; moved, mirrored, erased in part, mixed when read."""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.data.made import Batch, Made, luck
from regard.errors import ConfigError, ShapeError


class PictureBatches(Made):
    """Pictures that are all in memory, in batches of `size`; each time a picture looks different.

    Bytes stay on the device of the model, a batch of floats from 0 to 1 is made there: the
    reading of pictures never waits for a disk or a bus. With `mix`, the label has company: `other`
    is the class of the picture that a piece was taken from, `share` how much is left of its own.

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
        mix: float = 0.0,
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
        self.size, self.shift, self.flip, self.erase, self.mix = size, shift, flip, erase, mix
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
        labels = self.labels[chosen]
        if not self.mix:
            return {"pixels": pixels.float() / 255, "label": labels}
        pixels, whose, share = mixed(pixels, chance, mix=self.mix)
        batch = {"pixels": pixels.float() / 255, "label": labels}
        return batch | {"other": labels[whose], "share": share}

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
    square = None
    if erase:
        side = drawn(0, round(erase * height))
        square = _box(drawn(0, height - 1), drawn(0, width - 1), side, side, (height, width))
    if shift:
        rows, columns = rows + drawn(0, 2 * shift), columns + drawn(0, 2 * shift)
        pictures = F.pad(pictures, (shift, shift, shift, shift))
    whole = pictures.shape[-1]
    places = (rows[:, :, None] * whole + columns[:, None, :]).to(pictures.device)
    places = places.flatten(1)[:, None].expand(-1, channels, -1)
    moved = pictures.flatten(2).gather(2, places).unflatten(2, (height, width))
    return moved if square is None else moved.masked_fill(square.to(moved.device), 0)


class Mixed(NamedTuple):
    """Pictures with a piece of another in them: whose piece, and the share that is their own.

    >>> Mixed(torch.zeros(1, 1, 2, 2), torch.tensor([0]), torch.ones(1)).share
    tensor([1.])
    """

    pictures: Tensor
    whose: Tensor
    share: Tensor


def mixed(
    pictures: UInt8[Tensor, "batch channel height width"] | Float[Tensor, "batch channel h w"],
    chance: torch.Generator,
    *,
    mix: float,
) -> Mixed:
    """Each picture with, by the chance `mix`, a rectangle of another (CutMix, Yun et al. 2019).

    area = 1 - λ, λ uniform from 0 to 1, cut off at the edges;   share = 1 - area that was taken

    Chances are drawn on the CPU, so that every device gets the same pictures.

    >>> found = mixed(torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1), rg.data.luck(1), mix=1.0)
    >>> found.whose.tolist(), found.share.tolist()  # of one pixel all is taken, or nothing
    ([1, 0], [0.0, 0.0])
    >>> found.pictures.flatten().tolist()
    [1.0, 0.0]
    """
    batch, _, height, width = pictures.shape
    side = torch.rand(batch, 1, generator=chance).sqrt()  # the area is as likely small as large
    side = side * (torch.rand(batch, 1, generator=chance) < mix)
    rows = torch.randint(0, height, (batch, 1), generator=chance)
    columns = torch.randint(0, width, (batch, 1), generator=chance)
    tall, wide = ((side * x).round().long() for x in (height, width))
    taken = _box(rows, columns, tall, wide, (height, width))
    whose = torch.randperm(batch, generator=chance).to(pictures.device)
    share = 1 - taken.float().mean((1, 2, 3))
    new = torch.where(taken.to(pictures.device), pictures[whose], pictures)
    return Mixed(new, whose, share.to(pictures.device))


def _box(
    row: Tensor, column: Tensor, tall: Tensor, wide: Tensor, size: tuple[int, int]
) -> Bool[Tensor, "batch 1 height width"]:
    """Which pixels are in a rectangle about a place; what is beyond the edges is cut off."""
    down, across = (torch.arange(x) for x in size)
    top, left = row - tall // 2, column - wide // 2
    rows = (down >= top) & (down < top + tall)
    columns = (across >= left) & (across < left + wide)
    return (rows[:, :, None] & columns[:, None, :])[:, None]
