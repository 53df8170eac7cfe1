"""Pictures held as bytes where the model is; moved, mirrored, erased in part, mixed when read."""

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.data.generated_batches import Batch, GeneratedBatches, seeded_generator
from regard.errors import ConfigError, ShapeError


class ImageBatches(GeneratedBatches):
    """Pictures that are all in memory, in batches of `size`; each time a picture looks different.

    Bytes stay on the device of the model, a batch of floats from 0 to 1 is made there: the
    reading of pictures never waits for a disk or a bus. With `mix`, the label has company: `other`
    is the class of the picture that a piece was taken from, `share` how much is left of its own.

    >>> pictures = torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)
    >>> batch = next(iter(ImageBatches(pictures, torch.arange(4), batch_size=4)))
    >>> batch["pixels"].shape, sorted(batch["label"].tolist())
    (torch.Size([4, 1, 2, 2]), [0, 1, 2, 3])
    """

    def __init__(
        self,
        images: UInt8[Tensor, "count channel height width"],
        labels: Int[Tensor, " count"],
        *,
        batch_size: int,
        shift: int = 0,
        flip: bool = False,
        random_erasing: float = 0.0,
        cutmix: float = 0.0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        if len(images) != len(labels) or not len(labels):
            raise ShapeError(f"labels: needs one for each of {len(images)}, got {len(labels)}")
        if batch_size < 1:
            raise ConfigError(f"batch_size: needs 1 or more, got {batch_size}")
        super().__init__(self._batch, seed=seed, rank=rank, world_size=world_size)
        self.images, self.labels = images, labels
        self.batch_size, self.shift, self.flip, self.random_erasing, self.cutmix = (
            batch_size,
            shift,
            flip,
            random_erasing,
            cutmix,
        )
        self._order = lru_cache(2)(self._turn)

    def _turn(self, turn: int) -> Tensor:
        order = torch.randperm(
            len(self.labels), generator=seeded_generator(self.seed, "turn", turn)
        )
        return order.to(self.labels.device)

    def _batch(self, number: int) -> Batch:
        chosen = self._chosen(number * self.batch_size)
        chance = seeded_generator(self.seed, "batch", number)
        pixels = augment(
            self.images[chosen],
            chance,
            shift=self.shift,
            flip=self.flip,
            random_erasing=self.random_erasing,
        )
        labels = self.labels[chosen]
        if not self.cutmix:
            return {"pixels": pixels.float() / 255, "label": labels}
        pixels, whose, share = cutmix(pixels, chance, probability=self.cutmix)
        batch = {"pixels": pixels.float() / 255, "label": labels}
        return batch | {"other": labels[whose], "share": share}

    def _chosen(self, at: int) -> Tensor:
        """Which pictures: all of them in a new order, again and again."""
        parts, wanted = [], self.batch_size
        while wanted:
            turn, first = divmod(at, len(self.labels))
            parts.append(self._order(turn)[first : first + wanted])
            at, wanted = at + len(parts[-1]), wanted - len(parts[-1])
        return torch.cat(parts)


def augment(
    images: UInt8[Tensor, "batch channel height width"] | Float[Tensor, "batch channel h w"],
    generator: torch.Generator,
    *,
    shift: int = 0,
    flip: bool = False,
    random_erasing: float = 0.0,
) -> Tensor:
    """Each picture moved by up to `shift` pixels, mirrored or not, and a square of it made black.

    A square of side 0 to erase · height; what comes in from outside is black. Chances are drawn on
    the CPU, so that every device gets the same pictures.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> seen = {tuple(augment(x, rg.data.luck(n), flip=True).flatten().tolist()) for n in range(9)}
    >>> sorted(seen)
    [(0.0, 1.0, 2.0, 3.0), (1.0, 0.0, 3.0, 2.0)]
    """
    batch, channels, height, width = images.shape

    def drawn(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (batch, 1), generator=generator)

    rows, columns = torch.arange(height).repeat(batch, 1), torch.arange(width).repeat(batch, 1)
    if flip:
        columns = torch.where(drawn(0, 1) > 0, width - 1 - columns, columns)
    square = None
    if random_erasing:
        side = drawn(0, round(random_erasing * height))
        square = _box(drawn(0, height - 1), drawn(0, width - 1), side, side, (height, width))
    if shift:
        rows, columns = rows + drawn(0, 2 * shift), columns + drawn(0, 2 * shift)
        images = F.pad(images, (shift, shift, shift, shift))
    whole = images.shape[-1]
    places = (rows[:, :, None] * whole + columns[:, None, :]).to(images.device)
    places = places.flatten(1)[:, None].expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, places).unflatten(2, (height, width))
    return moved if square is None else moved.masked_fill(square.to(moved.device), 0)


class CutMixResult(NamedTuple):
    """Pictures with a piece of another in them: whose piece, and the share that is their own.

    >>> CutMixResult(torch.zeros(1, 1, 2, 2), torch.tensor([0]), torch.single_row_kernels(1)).own_fraction
    tensor([1.])
    """

    images: Tensor
    partners: Tensor
    own_fraction: Tensor


def cutmix(
    images: UInt8[Tensor, "batch channel height width"] | Float[Tensor, "batch channel h w"],
    generator: torch.Generator,
    *,
    probability: float,
) -> CutMixResult:
    """Each picture with, by the chance `mix`, a rectangle of another (CutMix, Yun et al. 2019).

    area = 1 - λ, λ uniform from 0 to 1, cut off at the edges;   share = 1 - area that was taken

    Chances are drawn on the CPU, so that every device gets the same pictures.

    >>> found = cutmix(torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1), rg.data.luck(1), probability=1.0)
    >>> found.partners.tolist(), found.own_fraction.tolist()  # of one pixel all is taken, or nothing
    ([1, 0], [0.0, 0.0])
    >>> found.images.flatten().tolist()
    [1.0, 0.0]
    """
    batch, _, height, width = images.shape
    side = torch.rand(batch, 1, generator=generator).sqrt()  # the area is as likely small as large
    side = side * (torch.rand(batch, 1, generator=generator) < probability)
    rows = torch.randint(0, height, (batch, 1), generator=generator)
    columns = torch.randint(0, width, (batch, 1), generator=generator)
    tall, wide = ((side * x).round().long() for x in (height, width))
    taken = _box(rows, columns, tall, wide, (height, width))
    whose = torch.randperm(batch, generator=generator).to(images.device)
    share = 1 - taken.float().mean((1, 2, 3))
    new = torch.where(taken.to(images.device), images[whose], images)
    return CutMixResult(new, whose, share.to(images.device))


def _box(
    row: Tensor, column: Tensor, tall: Tensor, wide: Tensor, size: tuple[int, int]
) -> Bool[Tensor, "batch 1 height width"]:
    """Which pixels are in a rectangle about a place; what is beyond the edges is cut off."""
    down, across = (torch.arange(x) for x in size)
    top, left = row - tall // 2, column - wide // 2
    rows = (down >= top) & (down < top + tall)
    columns = (across >= left) & (across < left + wide)
    return (rows[:, :, None] & columns[:, None, :])[:, None]
