"""Pictures held as bytes where the model is; moved, mirrored, erased in part, mixed when read."""

from functools import lru_cache

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.generated_batches import Batch, GeneratedBatches, seeded_generator
from regard.data.image.augmentation import augment, cutmix
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
            raise ConfigError(f"size: needs 1 or more, got {batch_size}")
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
