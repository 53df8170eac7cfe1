"""Packs tensors for saving; overlapping views are stored once."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.inspection.adapters.snapshot import memory_address

TensorRef = dict[str, Any]  # where a packed tensor is, as JSON


@dataclass
class _Buffer:
    """Overlapping views of one storage: the first one, its keys, and the keys of all."""

    name: str
    view: Tensor
    view_keys: range
    keys: range
    refs: list[tuple[TensorRef, int]] = field(default_factory=list)

    def tensor(self) -> Tensor:
        """The union of the views."""
        if self.keys == self.view_keys:
            return self.view
        x, before = self.view, self.view_keys.start - self.keys.start
        shape = (*x.shape[:2], len(self.keys), x.shape[3])
        return x.as_strided(shape, x.stride(), x.storage_offset() - before * x.stride(2))


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
        # views of one buffer differ only in their keys, along axis 2
        step = x.stride(2) if x.ndim == 4 else 0
        offset = int(x.storage_offset())
        start, rest = divmod(offset, step) if step else (0, offset)
        keys = range(start, start + x.shape[2]) if step else range(1)
        shape = (*x.shape[:2], x.shape[3]) if step else x.shape
        group = self._buffers[memory_address(x), x.dtype, x.stride(), rest, shape]
        buffer = next((b for b in group if _overlap(b.keys, keys)), None)
        if buffer is None:
            buffer = _Buffer(str(self._count), x, keys, keys)
            self._count += 1
            group.append(buffer)
        first, last = min(buffer.keys.start, start), max(buffer.keys.stop, keys.stop)
        buffer.keys = range(first, last)
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
                ref["first"] = start - buffer.keys.start
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


def _overlap(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)
