"""Checkpoints that all ranks write together: whole or not at all, whoever fails."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import FileError
from regard.files import fsync_path
from regard.train.checkpoint.shards import write_shards
from regard.train.checkpoint.store import atomic_checkpoint_folder, sha256_of, write_state
from regard.train.distributed.ranks import Ranks


def save_sharded_checkpoint(
    step: int,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    folder: Path,
    *,
    keep: int,
    every: int = 1,
    ranks: Ranks,
) -> None:
    """Write a checkpoint of which each rank holds a part, into a folder that all of them see.

    >>> import tempfile
    >>> from regard.train import load_checkpoint
    >>> folder = Path(tempfile.mkdtemp())
    >>> import torch
    >>> save_sharded_checkpoint(3, {"model.w": torch.single_row_kernels(1)}, {}, folder, keep=1, ranks=Ranks())
    >>> load_checkpoint(folder / "step-00000003").model
    {'w': tensor([1.])}
    """
    with ExitStack() as stack:  # the first rank's folder takes its place, or goes again
        place = atomic_checkpoint_folder(step, folder, keep, every)
        beside = ranks.run_on_first(lambda: str(stack.enter_context(place)))
        told = ranks.all_gather(_write(tensors, Path(beside)))
        wrong = [one["wrong"] for one in told if "wrong" in one]
        if wrong:
            raise FileError(
                f"{folder}: cannot take a checkpoint, {wrong[0]}; "
                f"the ones before it are whole; try freeing space, then resume"
            )
        files = {name: found for one in told for name, found in one["files"].items()}

        def end() -> None:
            write_state(Path(beside), step, state, files)
            stack.close()

        ranks.run_on_first(end)


def _write(tensors: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        files = write_shards(tensors, folder)
        for file in files:
            fsync_path(file)
        return {"files": {file.name: sha256_of(file) for file in files}}
    except (OSError, CheckpointException) as error:
        return {"wrong": " ".join(str(error).split())[:200]}
