"""Tensors on disk in parts, a file a rank: torch's distributed checkpoints, as safetensors."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def write_shards(tensors: dict[str, Tensor], folder: Path) -> list[Path]:
    """Write this rank's part of some tensors; every rank must call it. Its own files come back.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> [file.suffix for file in write_shards({"w": torch.single_row_kernels(2)}, folder)]
    ['.safetensors']
    >>> read_unsharded(folder)
    {'w': tensor([1., 1.])}
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _alone_is_fine():
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save(tensors, storage_writer=writer, no_dist=not dist.is_initialized())
    rank = dist.get_rank() if dist.is_initialized() else 0
    return sorted(folder.glob(f"shard-{rank + 1:05}-*.safetensors"))


def read_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill tensors, whole or this rank's part of them, from what any number of ranks wrote."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _alone_is_fine():
        reader = HuggingFaceStorageReader(str(folder))
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())


def read_unsharded(folder: Path) -> dict[str, Tensor]:
    """All tensors that were written in parts, each in one piece on the host."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _alone_is_fine():
        reader = HuggingFaceStorageReader(str(folder))
        found: dict[str, Any] = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in found.items()
        }
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
