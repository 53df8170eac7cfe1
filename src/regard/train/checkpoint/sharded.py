"""Sharded checkpoints: every rank writes its shard; all of them count, or none."""

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
    """Write a checkpoint of which each rank holds a shard, into a folder that all ranks see.

    Args:
        step: the last update.
        tensors: of this rank, as `merge_tensors` names them.
        state: JSON state.
        folder, keep, every: as of `save_checkpoint`.
        ranks: all of them call it.

    >>> import tempfile
    >>> from regard.train import load_checkpoint
    >>> folder = Path(tempfile.mkdtemp())
    >>> tensors = {"model.w": torch.ones(1)}
    >>> save_sharded_checkpoint(3, tensors, {}, folder, keep=1, ranks=Ranks())
    >>> load_checkpoint(folder / "step-00000003").model
    {'w': tensor([1.])}
    """
    with ExitStack() as stack:  # rank 0 renames or removes the temporary folder
        pending = atomic_checkpoint_folder(step, folder, keep, every)
        partial = Path(ranks.run_on_first(lambda: str(stack.enter_context(pending))))
        written = ranks.all_gather(_write(tensors, partial))
        problems = [shard["error"] for shard in written if "error" in shard]
        if problems:
            raise FileError(
                f"{folder}: cannot take a checkpoint, {problems[0]}; "
                f"the ones before it are whole; try freeing space, then resume"
            )
        files = {name: digest for shard in written for name, digest in shard["files"].items()}

        def finish() -> None:
            write_state(partial, step, state, files)
            stack.close()

        ranks.run_on_first(finish)


def _write(tensors: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    """This rank's files with their digests, or its error: all ranks have to learn of it."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        files = write_shards(tensors, folder)
        for file in files:
            fsync_path(file)
        return {"files": {file.name: sha256_of(file) for file in files}}
    except (OSError, CheckpointException) as error:
        return {"error": " ".join(str(error).split())[:200]}
