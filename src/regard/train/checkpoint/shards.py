"""Sharded tensors on disk, one safetensors file per rank, by torch's distributed checkpointing."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def write_shards(tensors: dict[str, Tensor], folder: Path) -> list[Path]:
    """Write this rank's shards; every rank must call it. Returns the files of this rank."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _ignore_no_dist_warning():
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save(tensors, storage_writer=writer, no_dist=not dist.is_initialized())
    rank = dist.get_rank() if dist.is_initialized() else 0
    return sorted(folder.glob(f"shard-{rank + 1:05}-*.safetensors"))


def read_shards(tensors: dict[str, Tensor], folder: Path, *, no_dist: bool = False) -> None:
    """Read into tensors, full or sharded, from files written by any number of ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with _ignore_no_dist_warning():
        reader = HuggingFaceStorageReader(str(folder))
        load(tensors, storage_reader=reader, no_dist=no_dist or not dist.is_initialized())


def read_unsharded(folder: Path) -> dict[str, Tensor]:
    """Read sharded files as full tensors on the CPU."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(str(folder)).read_metadata()
    metadata: dict[str, Any] = found.state_dict_metadata
    tensors = {name: torch.empty(x.size, dtype=x.properties.dtype) for name, x in metadata.items()}
    read_shards(tensors, folder, no_dist=True)
    return tensors


@contextmanager
def _ignore_no_dist_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
