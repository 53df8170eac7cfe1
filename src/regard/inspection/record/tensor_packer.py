"""Packs tensors for saving; overlapping views are stored once."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

TensorRef = dict[str, Any]  # where a packed tensor is, as JSON


@dataclass
class _Buffer:
    """Overlapping views of one storage, from key `start` to key `stop`."""

    name: str
    view: Tensor
    view_start: int
    start: int
    stop: int
    refs: list[tuple[TensorRef, int]] = field(default_factory=list)

    def tensor(self) -> Tensor:
        """The union of the views."""
        x = self.view
        if self.stop - self.start in (0, x.shape[2] if x.ndim == 4 else 0):
            return x
        shape = (*x.shape[:2], self.stop - self.start, x.shape[3])
        return x.as_strided(
            shape, x.stride(), x.storage_offset() + (self.start - self.view_start) * x.stride(2)
        )


class TensorPacker:
    """Collects tensors and returns references; keys of a growing text are stored once.

    A generated text has one site per step, and the keys of each step are a view of one buffer.
    They are packed as one tensor, from the first key of any step to the last.

    >>> packer, keys = TensorPacker(), torch.arange(6.0).view(1, 1, 3, 2)
    >>> ref, _ = packer.add(keys[:, :, :2]), packer.add(keys)
    >>> tensors = packer.tensors()
    >>> len(tensors), TensorPacker.get(ref, tensors).shape
    (1, torch.Size([1, 1, 2, 2]))
    """

    def __init__(self) -> None:
        self._buffers: dict[Any, list[_Buffer]] = defaultdict(list)
        self._count = 0

    def add(self, x: Tensor) -> TensorRef:
        """Add a tensor and return its reference; of a meta tensor only the shape is stored."""
        if x.is_meta:
            return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
        x = x.detach()
        buffer, start = self._find(x)
        ref: TensorRef = {"name": buffer.name}
        buffer.refs.append((ref, start))
        if x.ndim == 4:
            ref["count"] = x.shape[2]
        return ref

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; completes the references, so call it last."""
        buffers = [buffer for group in self._buffers.values() for buffer in group]
        for buffer in buffers:
            for ref, start in buffer.refs:
                ref["first"] = start - buffer.start
        return {buffer.name: buffer.tensor().cpu().contiguous() for buffer in buffers}

    @staticmethod
    def get(ref: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensor of a reference."""
        if "shape" in ref:
            dtype = getattr(torch, ref["dtype"])
            return torch.empty(ref["shape"], dtype=dtype, device="meta")
        x = tensors[ref["name"]]
        if "count" not in ref:
            return x
        return x[:, :, ref["first"] : ref["first"] + ref["count"]]

    def _find(self, x: Tensor) -> tuple[_Buffer, int]:
        """The buffer that x overlaps with, or a new one; and the first key of x in the storage."""
        layout = (x.untyped_storage().data_ptr(), x.dtype, x.stride())
        step = x.stride(2) if x.ndim == 4 else 0
        if step:
            start, rest = divmod(int(x.storage_offset()), step)
            key, stop = (*layout, rest, x.shape[:2], x.shape[3]), start + x.shape[2]
        else:
            start = stop = 0
            key = (*layout, x.storage_offset(), x.shape)
        for buffer in self._buffers[key]:
            if not step or max(buffer.start, start) < min(buffer.stop, stop):
                buffer.start, buffer.stop = min(buffer.start, start), max(buffer.stop, stop)
                return buffer, start
        buffer = _Buffer(str(self._count), x, start, start, stop)
        self._count += 1
        self._buffers[key].append(buffer)
        return buffer, start
