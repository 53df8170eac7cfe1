"""Augmented batches of images that are held as bytes on the device of the model."""

from functools import lru_cache, partial
from typing import Unpack

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.batches import Batch, Shard
from regard.data.generated_batches import GeneratedBatches, seeded_generator
from regard.data.image.augmentation import augment, cutmix
from regard.errors import ConfigError, ShapeError


class ImageBatches(GeneratedBatches):
    """Endless shuffled, augmented batches of images that are all in memory.

    The bytes stay on the device of the model and become floats from 0 to 1 there, so no batch
    waits for a disk or a bus. With `cutmix`, `other` is the class of the pasted rectangle
    and `share` the remaining fraction of the image itself.

    Args:
        images: all images, as bytes.
        labels: class of each.
        batch_size: images per batch.
        shift: largest translation, in pixels.
        flip: mirror half of the images.
        random_erasing: side of the largest erased square, as a fraction of the height.
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
