"""Augmented batches of images."""

from functools import lru_cache, partial
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.data.batches import Batch, GeneratedBatches, Shard, seeded_generator
from regard.errors import ConfigError, ShapeError


class ImageExample(NamedTuple):
    """An image with values from 0 (black) to 1 (white), and its class index."""

    image: Float[Tensor, "channel height width"]
    label: int


def augment(
    images: UInt8[Tensor, "batch channel height width"] | Float[Tensor, "batch channel h w"],
    generator: torch.Generator,
    *,
    shift: int = 0,
    flip: bool = False,
    random_erasing: float = 0.0,
) -> Tensor:
    """Random translation by up to `shift` pixels, horizontal flip, and random erasing.

    The erased square has side 0 to random_erasing · height; erased and shifted-in pixels are black.

    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> rows = [augment(x, rg.data.seeded_generator(n), flip=True).flatten() for n in range(9)]
    >>> sorted({tuple(row.tolist()) for row in rows})
    [(0.0, 1.0, 2.0, 3.0), (1.0, 0.0, 3.0, 2.0)]
    """
    batch, channels, height, width = images.shape

    def randint(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (batch, 1), generator=generator)

    rows, columns = torch.arange(height).repeat(batch, 1), torch.arange(width).repeat(batch, 1)
    if flip:
        columns = torch.where(randint(0, 1) > 0, width - 1 - columns, columns)
    square = None
    if random_erasing:
        side = randint(0, round(random_erasing * height))
        square = _box(randint(0, height - 1), randint(0, width - 1), side, side, (height, width))
    if shift:
        rows, columns = rows + randint(0, 2 * shift), columns + randint(0, 2 * shift)
        images = F.pad(images, (shift, shift, shift, shift))
    index = (rows[:, :, None] * images.shape[-1] + columns[:, None, :]).to(images.device)
    index = index.flatten(1)[:, None].expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, index).unflatten(2, (height, width))
    return moved if square is None else moved.masked_fill(square.to(moved.device), 0)


class CutMixResult(NamedTuple):
    """Mixed images, the index of each partner, and the remaining fraction of the image itself."""

    images: Tensor
    partners: Tensor
    own_fraction: Tensor


def cutmix(
    images: UInt8[Tensor, "batch channel height width"] | Float[Tensor, "batch channel h w"],
    generator: torch.Generator,
    *,
    probability: float,
) -> CutMixResult:
    """CutMix (Yun et al. 2019): paste a rectangle of another image of the batch.

    area = 1 - λ, λ uniform from 0 to 1, clipped at the edges;   own_fraction = 1 - pasted area

    >>> x = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1)
    >>> mixed = cutmix(x, rg.data.seeded_generator(1), probability=1.0)
    >>> mixed.partners.tolist(), mixed.own_fraction.tolist()  # of one pixel all is pasted
    ([1, 0], [0.0, 0.0])
    """
    batch, _, height, width = images.shape
    side = torch.rand(batch, 1, generator=generator).sqrt()  # uniform area
    side = side * (torch.rand(batch, 1, generator=generator) < probability)
    rows = torch.randint(0, height, (batch, 1), generator=generator)
    columns = torch.randint(0, width, (batch, 1), generator=generator)
    tall, wide = ((side * x).round().long() for x in (height, width))
    pasted = _box(rows, columns, tall, wide, (height, width))
    partners = torch.randperm(batch, generator=generator).to(images.device)
    own_fraction = 1 - pasted.float().mean((1, 2, 3))
    mixed = torch.where(pasted.to(images.device), images[partners], images)
    return CutMixResult(mixed, partners, own_fraction.to(images.device))


def _box(
    row: Tensor, column: Tensor, tall: Tensor, wide: Tensor, size: tuple[int, int]
) -> Bool[Tensor, "batch 1 height width"]:
    """Mask of a rectangle around a centre, clipped at the edges."""
    down, across = (torch.arange(x) for x in size)
    top, left = row - tall // 2, column - wide // 2
    rows = (down >= top) & (down < top + tall)
    columns = (across >= left) & (across < left + wide)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


class ImageBatches(GeneratedBatches):
    """Endless shuffled, augmented batches of images that are all in memory.

    The bytes stay on the device of the model and become floats from 0 to 1 there, so no batch
    waits for a disk or a bus. With `cutmix`, `other` is the class of the pasted rectangle
    and `share` the remaining fraction of the image itself.

    Args:
        images: all images, as bytes.
        labels: class of each.
        batch_size: images per batch.
        shift, flip, random_erasing: see `augment`.
        cutmix: probability of CutMix.
        seed: order and augmentation.
        shard: `rank` and `world_size` of the process.

    >>> images = torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)
    >>> batch = next(iter(ImageBatches(images, torch.arange(4), batch_size=4)))
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
        **shard: Unpack[Shard],
    ):
        if len(images) != len(labels) or not len(labels):
            raise ShapeError(f"labels: needs one for each of {len(images)}, got {len(labels)}")
        if batch_size < 1:
            raise ConfigError(f"batch_size: needs 1 or more, got {batch_size}")
        super().__init__(self._batch, seed=seed, **shard)
        self.images, self.labels = images, labels
        self.batch_size, self.cutmix = batch_size, cutmix
        self.augment = partial(augment, shift=shift, flip=flip, random_erasing=random_erasing)
        self._order = lru_cache(2)(self._shuffled)

    def _shuffled(self, epoch: int) -> Tensor:
        generator = seeded_generator(self.seed, "turn", epoch)
        return torch.randperm(len(self.labels), generator=generator).to(self.labels.device)

    def _batch(self, number: int) -> Batch:
        chosen = self._indices(number * self.batch_size)
        generator = seeded_generator(self.seed, "batch", number)
        pixels, labels = self.augment(self.images[chosen], generator), self.labels[chosen]
        batch = {"label": labels}
        if self.cutmix:
            pixels, partners, own_fraction = cutmix(pixels, generator, probability=self.cutmix)
            batch |= {"other": labels[partners], "share": own_fraction}
        return {"pixels": pixels.float() / 255, **batch}

    def _indices(self, at: int) -> Tensor:
        """Indices of a batch, which may span epochs."""
        parts, missing = [], self.batch_size
        while missing:
            epoch, first = divmod(at, len(self.labels))
            parts.append(self._order(epoch)[first : first + missing])
            at, missing = at + len(parts[-1]), missing - len(parts[-1])
        return torch.cat(parts)
