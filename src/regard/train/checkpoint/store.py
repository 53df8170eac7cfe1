"""Checkpoints: one folder each, written atomically and verified by checksum when read."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import FileError
from regard.files import atomic_path, fsync_path, parse_json
from regard.models.serialization import write_safetensors
from regard.train.checkpoint.shards import read_unsharded

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
VERSION = 2  # of the folder's layout
PARTIAL_PREFIX = ".writing-"  # of a folder while a checkpoint is written into it


class Checkpoint(NamedTuple):
    """What a resumed training needs: weights, optimizer tensors, and JSON state.

    >>> Checkpoint(3, {"w": torch.ones(1)}, {}, {"position": 12}).step
    3
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    checkpoint: Checkpoint, folder: str | Path, *, keep: int = 3, every: int = 1
) -> Path:
    """Write a checkpoint to `folder`/step-XXXXXXXX, atomically, and delete old ones.

    Args:
        checkpoint: what to write.
        folder: the parent of all checkpoints of a run.
        keep: how many of the last checkpoints stay.
        every: save interval; earlier checkpoints off it were written by an interruption, and go.

    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(Checkpoint(12, {"w": torch.ones(1)}, {}, {}), folder).name
    'step-00000012'
    """
    with atomic_checkpoint_folder(checkpoint.step, folder, keep, every) as partial:
        _write(checkpoint, partial)
    return checkpoint_path(checkpoint.step, folder)


def checkpoint_path(step: int, folder: str | Path) -> Path:
    """The folder of the checkpoint after update `step`.

    >>> checkpoint_path(12, "runs").name
    'step-00000012'
    """
    return Path(folder) / f"step-{step:08}"


def checkpoint_step(path: Path) -> int:
    """The update after which a checkpoint was written.

    >>> checkpoint_step(checkpoint_path(12, "runs"))
    12
    """
    return int(path.name.rpartition("-")[2])


@contextmanager
def atomic_checkpoint_folder(
    step: int, folder: str | Path, keep: int, every: int = 1
) -> Iterator[Path]:
    """A temporary folder, renamed to the checkpoint's own when the block ends without an error."""
    folder = Path(folder)
    path = checkpoint_path(step, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=folder))
        try:
            yield partial
            apply_umask(partial)
            fsync_path(partial)
            if path.exists():  # written before the run was resumed from an earlier checkpoint
                shutil.rmtree(path)
            os.replace(partial, path)
            fsync_path(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise FileError(
            f"{folder}: cannot take a checkpoint, {error.strerror or error}; "
            f"the ones before it are whole; try freeing space, then resume"
        ) from error
    # An uninterrupted run has no checkpoint off its schedule; the average of the last ones, taken
    # at the end, has to be the same for a resumed run.
    steps = {checkpoint_step(old): old for old in list_checkpoints(folder)}
    extra = [n for n in steps if n % every and n < step]
    for n in [*extra, *[n for n in steps if n not in extra][:-keep]]:
        shutil.rmtree(steps[n], ignore_errors=True)


def remove_partial_checkpoints(folder: str | Path) -> None:
    """Remove the partial checkpoints of killed processes.

    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / f"{PARTIAL_PREFIX}abc").mkdir()
    >>> remove_partial_checkpoints(folder), list(folder.iterdir())
    (None, [])
    """
    for partial in Path(folder).glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(partial, ignore_errors=True)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, verified by its checksums.

    >>> path = save_checkpoint(Checkpoint(1, {"w": torch.ones(1)}, {}, {}), tempfile.mkdtemp())
    >>> load_checkpoint(path).model["w"]
    tensor([1.])
    """
    path = Path(path)
    header = verify_checkpoint(path)
    try:
        if MODEL in header["files"]:
            model, optimizer = (load_file(path / name) for name in (MODEL, OPTIMIZER))
        else:
            model, optimizer = split_tensors(read_unsharded(path))
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: needs a whole checkpoint, got a damaged one, {error}") from error
    return Checkpoint(header["step"], model, optimizer, header["state"])


def verify_checkpoint(path: str | Path) -> dict[str, Any]:
    """Verify the checksums of a checkpoint; returns the contents of its state.json.

    >>> checkpoint = Checkpoint(1, {"w": torch.ones(1)}, {}, {"a": 2})
    >>> verify_checkpoint(save_checkpoint(checkpoint, tempfile.mkdtemp()))["state"]
    {'a': 2}
    """
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
            if sha256_of(path / name) != digest:
                raise FileError(f"{path}: needs its checksum, got another: {name} was damaged")
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: needs a whole checkpoint, got a damaged one, {error}") from error
    return header


def is_sharded(path: str | Path) -> bool:
    """Whether a checkpoint was written in shards, one file per rank.

    >>> is_sharded(save_checkpoint(Checkpoint(1, {}, {}, {}), tempfile.mkdtemp()))
    False
    """
    return not (Path(path) / MODEL).exists()


def merge_tensors(
    model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights and optimizer tensors in one dict, prefixed, for files that hold both.

    >>> list(merge_tensors({"w": torch.ones(1)}, {"w.step": torch.ones(1)}))
    ['model.w', 'optimizer.w.step']
    """
    merged = {f"model.{name}": x for name, x in model.items()}
    return merged | {f"optimizer.{name}": x for name, x in optimizer.items()}


def split_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Undo `merge_tensors`: weights, and optimizer tensors.

    >>> split_tensors(merge_tensors({"w": torch.ones(1)}, {}))
    ({'w': tensor([1.])}, {})
    """
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for name, x in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = x
    return groups["model"], groups["optimizer"]


def list_checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first.

    >>> list_checkpoints(tempfile.mkdtemp())
    []
    """
    return sorted(Path(folder).glob("step-????????"))


def load_last_valid(folder: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest intact checkpoint, or None, and the errors of newer ones.

    >>> load_last_valid(tempfile.mkdtemp())
    (None, [])
    """
    path, problems = find_last_valid(folder)
    return None if path is None else load_checkpoint(path), problems


def find_last_valid(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The path of the newest intact checkpoint, or None, and the errors of newer ones.

    >>> find_last_valid(tempfile.mkdtemp())
    (None, [])
    """
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

    >>> folder = tempfile.mkdtemp()
    >>> for step in (1, 2):
    ...     weights = {"w": torch.tensor([2.0 * step])}
    ...     path = save_checkpoint(Checkpoint(step, weights, {}, {}), folder)
    >>> average_checkpoints(list_checkpoints(folder))
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


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    metadata = {"regard": "checkpoint"}  # safetensors cannot read a file that has neither
    write_safetensors(checkpoint.model, metadata, folder / MODEL)
    write_safetensors(checkpoint.optimizer, metadata, folder / OPTIMIZER)
    files = {name: sha256_of(folder / name) for name in (MODEL, OPTIMIZER)}
    write_state(folder, checkpoint.step, checkpoint.state, files)


def write_state(folder: Path, step: int, state: dict[str, Any], files: dict[str, str]) -> None:
    """Write state.json, the last file of a checkpoint, with the digests of all others."""
    header: dict[str, Any] = {"version": VERSION, "step": step, "state": state, "files": files}
    _write_text(folder / STATE, json.dumps(header | {"checksum": _checksum_of(header)}))


def apply_umask(folder: Path) -> None:
    """Give a folder of mkdtemp, which is 0700, the mode of other new folders."""
    probe = folder / ".mode"  # os.umask reads the umask only by setting it, for all threads
    probe.mkdir()
    folder.chmod(probe.stat().st_mode)
    probe.rmdir()


def _write_text(file: Path, text: str) -> None:
    with atomic_path(file) as path:
        path.write_text(text, encoding="utf-8")


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_of(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
