"""Checkpoints: a folder each, written whole or not at all, and checked when read."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.errors import FileError
from regard.files import atomic_path, fsync_path, parse_json
from regard.models.serialization import write_safetensors
from regard.train.checkpoint.shards import read_unsharded

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
VERSION = 1  # of the folder's layout
PARTIAL_PREFIX = ".writing-"  # how a folder is called while a checkpoint is written into it


class Checkpoint(NamedTuple):
    """All that a training needs to go on: weights, the optimizer's tensors, and plain numbers.

    >>> Checkpoint(3, {"w": torch.single_row_kernels(1)}, {}, {"position": 12}).step
    3
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    checkpoint: Checkpoint, folder: str | Path, *, keep: int = 3, every: int = 1
) -> Path:
    """Write a checkpoint into its own folder below `folder`; the last `keep` of them stay.

    Written beside its place, forced to the disk, then moved there in one step. Earlier ones that
    are not of a multiple of `every` were made by a stop, and go.

    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(Checkpoint(12, {"w": torch.single_row_kernels(1)}, {}, {}), folder).name
    'step-00000012'
    """
    with atomic_checkpoint_folder(checkpoint.step, folder, keep, every) as beside:
        _write(checkpoint, beside)
    return checkpoint_path(checkpoint.step, folder)


def checkpoint_path(step: int, folder: str | Path) -> Path:
    """Where the checkpoint of an update is.

    >>> checkpoint_path(12, "runs").name
    'step-00000012'
    """
    return Path(folder) / f"step-{step:08}"


def checkpoint_step(path: Path) -> int:
    """The update that a checkpoint was made after.

    >>> checkpoint_step(checkpoint_path(12, "runs"))
    12
    """
    return int(path.name.rpartition("-")[2])


@contextmanager
def atomic_checkpoint_folder(
    step: int, folder: str | Path, keep: int, every: int = 1
) -> Iterator[Path]:
    """A folder to write a checkpoint into; it takes its place once all is written."""
    folder = Path(folder)
    place = checkpoint_path(step, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=PARTIAL_PREFIX, dir=folder))
        try:
            yield beside
            apply_umask(beside)
            fsync_path(beside)
            if place.exists():  # left by a training that was resumed from further back
                shutil.rmtree(place)
            os.replace(beside, place)
            fsync_path(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except OSError as error:
        raise FileError(
            f"{folder}: cannot take a checkpoint, {error.strerror or error}; "
            f"the ones before it are whole; try freeing space, then resume"
        ) from error
    # A run that was never stopped has none off its schedule; the mean of the last ones, taken at
    # the end, has to be the same.
    there = list_checkpoints(folder)
    by_a_stop = [
        old for old in there if checkpoint_step(old) % every and checkpoint_step(old) < step
    ]
    for old in [*by_a_stop, *[old for old in there if old not in by_a_stop][:-keep]]:
        shutil.rmtree(old, ignore_errors=True)


def remove_partial_checkpoints(folder: str | Path) -> None:
    """Remove what processes left that were killed while they wrote a checkpoint.

    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / f"{PARTIAL_PREFIX}abc").mkdir()
    >>> remove_partial_checkpoints(folder), list(folder.iterdir())
    (None, [])
    """
    for left in Path(folder).glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read one checkpoint and check every byte of it.

    >>> place = save_checkpoint(Checkpoint(1, {"w": torch.single_row_kernels(1)}, {}, {}), tempfile.mkdtemp())
    >>> load_checkpoint(place).model["w"]
    tensor([1.])
    """
    path, told = Path(path), verify_checkpoint(path)
    try:
        if MODEL in told["files"]:
            model, optimizer = (load_file(path / name) for name in (MODEL, OPTIMIZER))
        else:
            model, optimizer = split_tensors(read_unsharded(path))
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path}: needs a whole checkpoint, got a damaged one, {error}") from error
    return Checkpoint(told["step"], model, optimizer, told["state"])


def verify_checkpoint(path: str | Path) -> dict[str, Any]:
    """Check every byte of a checkpoint; what its state says comes back.

    >>> made = Checkpoint(1, {"w": torch.single_row_kernels(1)}, {}, {"a": 2})
    >>> verify_checkpoint(save_checkpoint(made, tempfile.mkdtemp()))["state"]
    {'a': 2}
    """
    path = Path(path)
    try:
        told = parse_json((path / STATE).read_text())
        checksum = told.pop("checksum")
        if told["version"] != VERSION:
            raise FileError(
                f"{path}: needs version {VERSION}, got {told['version']}; try a newer regard"
            )
        if _checksum_of(told) != checksum:
            raise FileError(f"{path}: needs its checksum, got another: {STATE} was damaged")
        for name, want in told["files"].items():
            if sha256_of(path / name) != want:
                raise FileError(f"{path}: needs its checksum, got another: {name} was damaged")
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: needs a whole checkpoint, got a damaged one, {error}") from error
    return told


def is_sharded(path: str | Path) -> bool:
    """Whether a checkpoint was written by many ranks, each its part.

    >>> is_sharded(save_checkpoint(Checkpoint(1, {}, {}, {}), tempfile.mkdtemp()))
    False
    """
    return not (Path(path) / MODEL).exists()


def merge_tensors(
    model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights and the optimizer's tensors under one roof, for files that hold both.

    >>> list(merge_tensors({"w": torch.single_row_kernels(1)}, {"w.step": torch.single_row_kernels(1)}))
    ['model.w', 'optimizer.w.step']
    """
    one = {f"model.{name}": x for name, x in model.items()}
    return one | {f"optimizer.{name}": x for name, x in optimizer.items()}


def split_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and the optimizer's tensors, apart again.

    >>> split_tensors(merge_tensors({"w": torch.single_row_kernels(1)}, {}))
    ({'w': tensor([1.])}, {})
    """
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for name, x in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = x
    return parts["model"], parts["optimizer"]


def list_checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, from the first to the last; unfinished ones are not seen.

    >>> list_checkpoints(tempfile.mkdtemp())
    []
    """
    return sorted(Path(folder).glob("step-????????"))


def load_last_valid(folder: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole (None: there is none), and what is wrong with newer ones.

    >>> load_last_valid(tempfile.mkdtemp())
    (None, [])
    """
    place, wrong = find_last_valid(folder)
    return None if place is None else load_checkpoint(place), wrong


def find_last_valid(folder: str | Path) -> tuple[Path | None, list[str]]:
    """Where the newest checkpoint that is whole is, and what is wrong with newer ones.

    >>> find_last_valid(tempfile.mkdtemp())
    (None, [])
    """
    wrong = []
    for place in reversed(list_checkpoints(folder)):
        try:
            verify_checkpoint(place)
            return place, wrong
        except FileError as error:
            wrong.append(str(error))
    return None, wrong


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, which is often better than each of them.

    w = Σ_i w_i / n, summed in double precision; what is no fraction (a counter) is the last one's

    >>> folder = tempfile.mkdtemp()
    >>> for step in (1, 2):
    ...     weights = {"w": torch.tensor([2.0 * step])}
    ...     place = save_checkpoint(Checkpoint(step, weights, {}, {}), folder)
    >>> average_checkpoints(list_checkpoints(folder))
    {'w': tensor([3.])}
    """
    if not paths:
        raise FileError("places: need one checkpoint at least, got none")
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for place in paths:
        last = load_checkpoint(place).model
        for name, x in last.items():
            sums[name] = sums[name] + x.double() if name in sums else x.double()
    return {
        name: (sums[name] / len(paths)).to(x.dtype) if x.is_floating_point() else x
        for name, x in last.items()
    }


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every saved tensor of a model itself, a shared one once, under its first name.

    >>> list(state_tensors(nn.PackedLinear(1, 1)))
    ['weight', 'bias']
    """
    first: dict[int, tuple[str, Tensor]] = {}
    for name, x in model.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    return {name: x.detach() for name, x in first.values()}


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of every saved tensor of a model, a shared one once, under its first name.

    >>> list(copy_weights(nn.PackedLinear(1, 1)))
    ['weight', 'bias']
    """
    return {name: x.cpu().clone().contiguous() for name, x in state_tensors(model).items()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, Tensor], label: str = "weights") -> None:
    """Put saved weights into a model of the same shape, also one whose ranks hold parts of it.

    >>> layer = nn.PackedLinear(1, 1)
    >>> load_weights(layer, {"weight": torch.single_row_kernels(1, 1), "bias": torch.zeros(1)})
    >>> layer(torch.tensor([2.0])).item()
    2.0
    """
    own = state_tensors(model)
    if {n: x.shape for n, x in weights.items()} != {n: x.shape for n, x in own.items()}:
        raise FileError(f"{label}: needs the weights of this model, got those of another")
    for name, x in weights.items():
        own[name].copy_(shard_like(own[name], x))


def shard_like(target: Tensor, x: Tensor) -> Tensor:
    """A whole tensor as `own` is held: itself, or the part of it that is this rank's.

    >>> shard_like(torch.zeros(2), torch.single_row_kernels(2))
    tensor([1., 1.])
    """
    if not hasattr(target, "full_tensor"):
        return x
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    # every rank has read the whole: each takes its part, nothing is sent
    whole = x.to(target.device)
    return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    note = {"regard": "checkpoint"}  # a file without tensors and notes could not be read back
    write_safetensors(checkpoint.model, note, folder / MODEL)
    write_safetensors(checkpoint.optimizer, note, folder / OPTIMIZER)
    files = {name: sha256_of(folder / name) for name in (MODEL, OPTIMIZER)}
    write_state(folder, checkpoint.step, checkpoint.state, files)


def write_state(folder: Path, step: int, state: dict[str, Any], files: dict[str, str]) -> None:
    """The last file of a checkpoint: plain numbers, and the digests of all others."""
    told: dict[str, Any] = {"version": VERSION, "step": step, "state": state, "files": files}
    _write_text(folder / STATE, json.dumps(told | {"checksum": _checksum_of(told)}))


def apply_umask(folder: Path) -> None:
    """Let those read it who read other folders of this user; mkdtemp is for secrets, 0700."""
    probe = folder / ".mode"  # shows the umask without setting it: other threads write files too
    probe.mkdir()
    folder.chmod(probe.stat().st_mode)
    probe.rmdir()


def _write_text(file: Path, text: str) -> None:
    """A small file, beside its place first: never half of it."""
    with atomic_path(file) as place:
        place.write_text(text, encoding="utf-8")


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
