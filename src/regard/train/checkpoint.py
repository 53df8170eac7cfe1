"""Checkpoints: a folder each, written whole or not at all, and checked when read."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.errors import FileError
from regard.models.store import write_whole

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
VERSION = 1  # of the folder's layout


class Checkpoint(NamedTuple):
    """All that a training needs to go on: weights, the optimizer's tensors, and plain numbers.

    >>> Checkpoint(3, {"w": torch.ones(1)}, {}, {"position": 12}).step
    3
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(checkpoint: Checkpoint, folder: str | Path, *, keep: int = 3) -> Path:
    """Write a checkpoint into its own folder below `folder`; the last `keep` of them stay.

    Written beside its place, forced to the disk, then moved there in one step.

    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(Checkpoint(12, {"w": torch.ones(1)}, {}, {}), folder).name
    'step-00000012'
    """
    folder = Path(folder)
    place = folder / f"step-{checkpoint.step:08}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
        try:
            _write(checkpoint, beside)
            if place.exists():  # left by a training that was resumed from further back
                shutil.rmtree(place)
            os.replace(beside, place)
            _to_disk(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except OSError as error:
        raise FileError(
            f"{folder}: cannot take a checkpoint, {error.strerror or error}; "
            f"the ones before it are whole; try freeing space, then resume"
        ) from error
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def load_checkpoint(place: str | Path) -> Checkpoint:
    """Read one checkpoint and check every byte of it.

    >>> place = save_checkpoint(Checkpoint(1, {"w": torch.ones(1)}, {}, {}), tempfile.mkdtemp())
    >>> load_checkpoint(place).model["w"]
    tensor([1.])
    """
    place = Path(place)
    try:
        told = json.loads((place / STATE).read_text())
        checksum = told.pop("checksum")
        if told["version"] != VERSION:
            raise FileError(
                f"{place}: needs version {VERSION}, got {told['version']}; try a newer regard"
            )
        if _checksum_of(told) != checksum:
            raise FileError(f"{place}: needs its checksum, got another: {STATE} was damaged")
        for name, want in told["files"].items():
            if _digest(place / name) != want:
                raise FileError(f"{place}: needs its checksum, got another: {name} was damaged")
        tensors = [load_file(place / name) for name in (MODEL, OPTIMIZER)]
    except (OSError, SafetensorError, json.JSONDecodeError, KeyError, UnicodeDecodeError) as error:
        raise FileError(f"{place}: needs a whole checkpoint, got a damaged one, {error}") from error
    return Checkpoint(told["step"], tensors[0], tensors[1], told["state"])


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, from the first to the last; unfinished ones are not seen.

    >>> checkpoints(tempfile.mkdtemp())
    []
    """
    return sorted(Path(folder).glob("step-????????"))


def last_good(folder: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole (None: there is none), and what is wrong with newer ones.

    >>> last_good(tempfile.mkdtemp())
    (None, [])
    """
    wrong = []
    for place in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(place), wrong
        except FileError as error:
            wrong.append(str(error))
    return None, wrong


def average(places: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, which is often better than each of them.

    w = Σ_i w_i / n, summed in double precision; what is no fraction (a counter) is the last one's

    >>> folder = tempfile.mkdtemp()
    >>> for step in (1, 2):
    ...     weights = {"w": torch.tensor([2.0 * step])}
    ...     place = save_checkpoint(Checkpoint(step, weights, {}, {}), folder)
    >>> average(checkpoints(folder))
    {'w': tensor([3.])}
    """
    if not places:
        raise FileError("places: need one checkpoint at least, got none")
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for place in places:
        last = load_checkpoint(place).model
        for name, x in last.items():
            sums[name] = sums[name] + x.double() if name in sums else x.double()
    return {
        name: (sums[name] / len(places)).to(x.dtype) if x.is_floating_point() else x
        for name, x in last.items()
    }


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of every saved tensor of a model, a shared one once, under its first name.

    >>> list(weights_of(nn.Linear(1, 1)))
    ['weight', 'bias']
    """
    first: dict[int, tuple[str, Tensor]] = {}
    for name, x in model.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    return {name: x.detach().cpu().clone().contiguous() for name, x in first.values()}


@torch.no_grad()
def fill(model: nn.Module, weights: Mapping[str, Tensor], what: str = "weights") -> None:
    """Put saved weights into a model of the same shape.

    >>> layer = nn.Linear(1, 1)
    >>> fill(layer, {"weight": torch.ones(1, 1), "bias": torch.zeros(1)})
    >>> layer(torch.tensor([2.0])).item()
    2.0
    """
    own = model.state_dict(keep_vars=True)
    if {n: x.shape for n, x in weights.items()} != {n: own[n].shape for n in weights_of(model)}:
        raise FileError(f"{what}: needs the weights of this model, got those of another")
    for name, x in weights.items():
        own[name].copy_(x)


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    note = {"regard": "checkpoint"}  # a file without tensors and notes could not be read back
    write_whole(checkpoint.model, note, folder / MODEL)
    write_whole(checkpoint.optimizer, note, folder / OPTIMIZER)
    told: dict[str, Any] = {"version": VERSION, "step": checkpoint.step, "state": checkpoint.state}
    told["files"] = {name: _digest(folder / name) for name in (MODEL, OPTIMIZER)}
    write_text(folder / STATE, json.dumps(told | {"checksum": _checksum_of(told)}))
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)  # mkdtemp is for secrets, 0700
    _to_disk(folder)


def write_text(file: Path, text: str) -> None:
    """A small file, beside its place first: never half of it."""
    beside = file.with_name(f".{file.name}.new")
    with open(beside, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, file)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
