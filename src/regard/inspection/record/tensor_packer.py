"""Tensors put away for saving, each number once."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

TensorRef = dict[str, Any]  # as JSON


@dataclass
class _Text:
    """Parts of one tensor, from `start` to `stop` along the keys of the buffer they are of."""

    name: str
    part: Tensor
    at: int
    start: int
    stop: int
    places: list[tuple[TensorRef, int]] = field(default_factory=list)

    def whole(self) -> Tensor:
        """All of it, as one tensor."""
        x = self.part
        if self.stop - self.start in (0, x.shape[2] if x.ndim == 4 else 0):
            return x
        shape = (*x.shape[:2], self.stop - self.start, x.shape[3])
        return x.as_strided(
            shape, x.stride(), x.storage_offset() + (self.start - self.at) * x.stride(2)
        )


class TensorPacker:
    """Puts tensors away and says where each is; keys of one growing text are kept once.

    A generated text has a site a step, and each step's keys are a part of one buffer. They are
    written as one tensor, from the first key of any step to the last.

    >>> shelf, text = TensorPacker(), torch.arange(6.0).view(1, 1, 3, 2)
    >>> place, _ = shelf.add(text[:, :, :2]), shelf.add(text)
    >>> tensors = shelf.tensors()
    >>> len(tensors), TensorPacker.get(place, tensors).shape
    (1, torch.Size([1, 1, 2, 2]))
    """

    def __init__(self) -> None:
        self._texts: dict[Any, list[_Text]] = defaultdict(list)
        self._count = 0

    def add(self, x: Tensor) -> TensorRef:
        """Where x will be found; a tensor without numbers is only a shape."""
        if x.is_meta:
            return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
        x = x.detach()
        text, at = self._find(x)
        place: TensorRef = {"name": text.name}
        text.places.append((place, at))
        if x.ndim == 4:
            place["count"] = x.shape[2]
        return place

    def tensors(self) -> dict[str, Tensor]:
        """All there is to write, and with it every place is final."""
        texts = [text for same in self._texts.values() for text in same]
        for text in texts:
            for place, at in text.places:
                place["first"] = at - text.start
        return {text.name: text.whole().cpu().contiguous() for text in texts}

    @staticmethod
    def get(ref: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
        """What was put at this place."""
        if "shape" in ref:
            dtype = getattr(torch, ref["dtype"])
            return torch.empty(ref["shape"], dtype=dtype, device="meta")
        x = tensors[ref["name"]]
        if "count" not in ref:
            return x
        return x[:, :, ref["first"] : ref["first"] + ref["count"]]

    def _find(self, x: Tensor) -> tuple[_Text, int]:
        """The text that x is a part of, or a new one; parts must overlap to be of one text."""
        pointer = (x.untyped_storage().data_ptr(), x.dtype, x.stride())
        step = x.stride(2) if x.ndim == 4 else 0
        if step:
            at, rest = divmod(int(x.storage_offset()), step)
            key, stop = (*pointer, rest, x.shape[:2], x.shape[3]), at + x.shape[2]
        else:
            at = stop = 0
            key = (*pointer, x.storage_offset(), x.shape)
        for text in self._texts[key]:
            if not step or max(text.start, at) < min(text.stop, stop):
                text.start, text.stop = min(text.start, at), max(text.stop, stop)
                return text, at
        text = _Text(str(self._count), x, at, at, stop)
        self._count += 1
        self._texts[key].append(text)
        return text, at
