"""Checkpoints: one folder each, written atomically and verified by checksum when read.

save_checkpoint(Checkpoint(step, weights, optimizer, state), "runs/mine/checkpoints")
checkpoint, damaged = load_last_valid("runs/mine/checkpoints")
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import FileError
from regard.files import atomic_path, fsync_path, parse_json
from regard.models.serialization import write_safetensors
from regard.train.distributed import Ranks

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
VERSION = 2  # of the folder's layout
PREFIX, PARTIAL_PREFIX = "step-", ".writing-"  # of a folder while a checkpoint is written into it
BEST_PREFIX = "best-"  # of the weights at an evaluation that was the best until then


class Checkpoint(NamedTuple):
    """What a resumed training needs: weights, optimizer tensors, and JSON state."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    checkpoint: Checkpoint, folder: str | Path, *, keep: int = 3, every: int = 1, best: bool = False
) -> Path:
    """Write a checkpoint to `folder`/step-XXXXXXXX, atomically, and delete old ones.

    Args:
        checkpoint: what to write.
        folder: the parent of all checkpoints of a run.
        keep: how many of the last checkpoints stay.
        every: save interval; earlier checkpoints off it were written by an interruption, and go.
        best: write to best-XXXXXXXX instead, and delete nothing; see `find_best`.

    >>> import tempfile
    >>> save_checkpoint(Checkpoint(12, {"w": torch.ones(1)}, {}, {}), tempfile.mkdtemp()).name
    'step-00000012'
    """
    path = _checkpoint_path(checkpoint.step, folder, BEST_PREFIX if best else PREFIX)
    with _atomic_folder(path) as partial:
        metadata = {"regard": "checkpoint"}  # safetensors cannot read a file that has neither
        write_safetensors(checkpoint.model, metadata, partial / MODEL)
        write_safetensors(checkpoint.optimizer, metadata, partial / OPTIMIZER)
        files = {name: _sha256_of(partial / name) for name in (MODEL, OPTIMIZER)}
        _write_state(partial, checkpoint.step, checkpoint.state, files)
    if not best:
        _remove_old(Path(folder), checkpoint.step, keep, every)
    return path


def save_sharded_checkpoint(
    step: int,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    folder: Path,
    *,
    keep: int,
    every: int,
    ranks: Ranks,
) -> None:
    """Write a checkpoint of which each rank holds a shard; all shards count, or none.

    Every rank calls it, with its `tensors` named by `merge_tensors`; all of them see the folder.
    """
    with ExitStack() as stack:  # rank 0 renames or removes the temporary folder
        pending = _atomic_folder(_checkpoint_path(step, folder))
        partial = Path(ranks.run_on_first(lambda: str(stack.enter_context(pending))))
        written = ranks.all_gather(_write_shard(tensors, partial))
        for shard in written:
            if "error" in shard:
                raise _write_error(folder, shard["error"])
        files = {name: digest for shard in written for name, digest in shard["files"].items()}

        def finish() -> None:
            _write_state(partial, step, state, files)
            stack.close()
            _remove_old(folder, step, keep, every)

        ranks.run_on_first(finish)


def _write_shard(tensors: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    """This rank's files with their digests, or its error: all ranks have to learn of it."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        files = write_shards(tensors, folder)
        for file in files:
            fsync_path(file)
        return {"files": {file.name: _sha256_of(file) for file in files}}
    except (OSError, CheckpointException) as error:
        return {"error": " ".join(str(error).split())[:200]}


def _checkpoint_path(step: int, folder: str | Path, prefix: str = PREFIX) -> Path:
    return Path(folder) / f"{prefix}{step:08}"


def checkpoint_step(path: Path) -> int:
    """The update after which a checkpoint was written."""
    return int(path.name.rpartition("-")[2])


@contextmanager
def _atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, renamed to `path` when the block ends without an error."""
    folder = path.parent
    partial = folder / f"{PARTIAL_PREFIX}{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            yield partial
            fsync_path(partial)
            if path.exists():  # written before the run was resumed from an earlier checkpoint
                _remove(path)
            os.replace(partial, path)
            fsync_path(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise _write_error(folder, error.strerror or error) from error


def _remove_old(folder: Path, step: int, keep: int, every: int) -> None:
    # An uninterrupted run has no checkpoint off its schedule; the average of the last ones, taken
    # at the end, has to be the same for a resumed run.
    steps = {checkpoint_step(old): old for old in list_checkpoints(folder)}
    extra = [n for n in steps if n % every and n < step]
    for n in [*extra, *[n for n in steps if n not in extra][:-keep]]:
        _remove(steps.pop(n))
    # the oldest one that may be resumed from still needs the best weights of its time
    oldest_best = find_best(folder, min(steps))
    for path in _list_best(folder):
        if oldest_best is not None and path < oldest_best:
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder, which is renamed first: half of it is then no checkpoint."""
    doomed = path.with_name(f"{PARTIAL_PREFIX}{uuid4().hex}")
    with suppress(OSError):
        os.replace(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _list_best(folder: str | Path) -> list[Path]:
    return sorted(Path(folder).glob(f"{BEST_PREFIX}????????"))


def find_best(folder: str | Path, step: int) -> Path | None:
    """The weights of the best evaluation up to an update, or None.

    Each was written when it was the best until then, so it is the last one.
    """
    paths = [path for path in _list_best(folder) if checkpoint_step(path) <= step]
    return paths[-1] if paths else None


def remove_best_after(folder: str | Path, step: int) -> None:
    """Remove best weights that are newer than the checkpoint which a run is resumed from."""
    for path in _list_best(folder):
        if checkpoint_step(path) > step:
            _remove(path)


def _write_error(folder: Path, problem: object) -> FileError:
    return FileError(
        f"{folder}: cannot take a checkpoint, {problem}; "
        f"the ones before it are whole; try freeing space, then resume"
    )


def remove_partial_checkpoints(folder: str | Path) -> None:
    """Remove the partial checkpoints of killed processes."""
    for partial in Path(folder).glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(partial, ignore_errors=True)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, verified by its checksums.

    >>> import tempfile
    >>> path = save_checkpoint(Checkpoint(1, {"w": torch.ones(1)}, {}, {}), tempfile.mkdtemp())
    >>> load_checkpoint(path).model["w"]
    tensor([1.])
    """
    path = Path(path)
    header = verify_checkpoint(path)
    try:
        if MODEL in header["files"]:
            model, optimizer = (
                load_file(path / name, backend="pread") for name in (MODEL, OPTIMIZER)
            )
        else:
            tensors = read_unsharded(path)
            model, optimizer = (_take(tensors, prefix) for prefix in ("model.", "optimizer."))
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: needs a whole checkpoint, got a damaged one, {error}") from error
    return Checkpoint(header["step"], model, optimizer, header["state"])


def verify_checkpoint(path: str | Path) -> dict[str, Any]:
    """Verify the checksums of a checkpoint; returns the contents of its state.json."""
    path = Path(path)
    try:
        header = parse_json((path / STATE).read_text())
        checksum = header.pop("checksum")
        if header["version"] != VERSION:
            raise FileError(
                f"{path}: needs version {VERSION}, got {header['version']}; "
                f"try the regard that wrote it"
            )
        if _checksum_of(header) != checksum:
            raise FileError(f"{path}: needs its checksum, got another: {STATE} was damaged")
        for name, digest in header["files"].items():
            if _sha256_of(path / name) != digest:
                raise FileError(f"{path}: needs its checksum, got another: {name} was damaged")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: needs a whole checkpoint, got a damaged one, {error}") from error
    return header


def merge_tensors(
    model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights and optimizer tensors in one dict, prefixed, for files that hold both."""
    merged = {f"model.{name}": x for name, x in model.items()}
    return merged | {f"optimizer.{name}": x for name, x in optimizer.items()}


def _take(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}


def list_checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first.

    >>> list_checkpoints("nowhere")
    []
    """
    return sorted(Path(folder).glob(f"{PREFIX}????????"))


def load_last_valid(folder: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest intact checkpoint, or None, and the errors of newer ones.

    >>> load_last_valid("nowhere")
    (None, [])
    """
    path, problems = find_last_valid(folder)
    return None if path is None else load_checkpoint(path), problems


def find_last_valid(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The path of the newest intact checkpoint, or None, and the errors of newer ones."""
    problems = []
    for path in reversed(list_checkpoints(folder)):
        try:
            verify_checkpoint(path)
            return path, problems
        except FileError as error:
            problems.append(str(error))
    return None, problems


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, often better than each of them.

    w = Σ_i w_i / n, summed in float64; integer tensors (counters) are those of the last one

    >>> import tempfile
    >>> one, two = (Checkpoint(n, {"w": torch.tensor([2.0 * n])}, {}, {}) for n in (1, 2))
    >>> average_checkpoints([save_checkpoint(x, tempfile.mkdtemp()) for x in (one, two)])
    {'w': tensor([3.])}
    """
    if not paths:
        raise FileError("paths: needs 1 checkpoint or more, got none")
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for path in paths:
        last = load_checkpoint(path).model
        for name, x in last.items():
            sums[name] = sums[name] + x.double() if name in sums else x.double()
    return {
        name: (sums[name] / len(paths)).to(x.dtype) if x.is_floating_point() else x
        for name, x in last.items()
    }


def _write_state(folder: Path, step: int, state: dict[str, Any], files: dict[str, str]) -> None:
    """Write state.json, the last file of a checkpoint, with the digests of all others."""
    header: dict[str, Any] = {"version": VERSION, "step": step, "state": state, "files": files}
    with atomic_path(folder / STATE) as path:
        path.write_text(json.dumps(header | {"checksum": _checksum_of(header)}), encoding="utf-8")


def _sha256_of(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_of(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


# ---- shards: one safetensors file per rank, by torch's distributed checkpointing


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

    reader = HuggingFaceStorageReader(str(folder))
    metadata: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(x.size, dtype=x.properties.dtype) for name, x in metadata.items()}
    read_shards(tensors, folder, no_dist=True)
    return tensors


@contextmanager
def _ignore_no_dist_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
