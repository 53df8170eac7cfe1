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
from regard.files import beside, parse_json, to_disk
from regard.models.store import write_whole
from regard.train.parts import read_whole

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
VERSION = 1  # of the folder's layout
UNFINISHED = ".writing-"  # how a folder is called while a checkpoint is written into it


class Checkpoint(NamedTuple):
    """All that a training needs to go on: weights, the optimizer's tensors, and plain numbers.

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
    """Write a checkpoint into its own folder below `folder`; the last `keep` of them stay.

    Written beside its place, forced to the disk, then moved there in one step. Earlier ones that
    are not of a multiple of `every` were made by a stop, and go.

    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(Checkpoint(12, {"w": torch.ones(1)}, {}, {}), folder).name
    'step-00000012'
    """
    with writing_checkpoint(checkpoint.step, folder, keep, every) as beside:
        _write(checkpoint, beside)
    return place_of(checkpoint.step, folder)


def place_of(step: int, folder: str | Path) -> Path:
    """Where the checkpoint of an update is.

    >>> place_of(12, "runs").name
    'step-00000012'
    """
    return Path(folder) / f"step-{step:08}"


def step_of(place: Path) -> int:
    """The update that a checkpoint was made after.

    >>> step_of(place_of(12, "runs"))
    12
    """
    return int(place.name.rpartition("-")[2])


@contextmanager
def writing_checkpoint(step: int, folder: str | Path, keep: int, every: int = 1) -> Iterator[Path]:
    """A folder to write a checkpoint into; it takes its place once all is written."""
    folder = Path(folder)
    place = place_of(step, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
        try:
            yield beside
            open_to_all(beside)
            to_disk(beside)
            if place.exists():  # left by a training that was resumed from further back
                shutil.rmtree(place)
            os.replace(beside, place)
            to_disk(folder)
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
    there = checkpoints(folder)
    by_a_stop = [old for old in there if step_of(old) % every and step_of(old) < step]
    for old in [*by_a_stop, *[old for old in there if old not in by_a_stop][:-keep]]:
        shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(folder: str | Path) -> None:
    """Remove what processes left that were killed while they wrote a checkpoint.

    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / f"{UNFINISHED}abc").mkdir()
    >>> remove_unfinished(folder), list(folder.iterdir())
    (None, [])
    """
    for left in Path(folder).glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def load_checkpoint(place: str | Path) -> Checkpoint:
    """Read one checkpoint and check every byte of it.

    >>> place = save_checkpoint(Checkpoint(1, {"w": torch.ones(1)}, {}, {}), tempfile.mkdtemp())
    >>> load_checkpoint(place).model["w"]
    tensor([1.])
    """
    place, told = Path(place), check(place)
    try:
        if MODEL in told["files"]:
            model, optimizer = (load_file(place / name) for name in (MODEL, OPTIMIZER))
        else:
            model, optimizer = split(read_whole(place))
    except (OSError, SafetensorError) as error:
        raise FileError(f"{place}: needs a whole checkpoint, got a damaged one, {error}") from error
    return Checkpoint(told["step"], model, optimizer, told["state"])


def check(place: str | Path) -> dict[str, Any]:
    """Check every byte of a checkpoint; what its state says comes back.

    >>> made = Checkpoint(1, {"w": torch.ones(1)}, {}, {"a": 2})
    >>> check(save_checkpoint(made, tempfile.mkdtemp()))["state"]
    {'a': 2}
    """
    place = Path(place)
    try:
        told = parse_json((place / STATE).read_text())
        checksum = told.pop("checksum")
        if told["version"] != VERSION:
            raise FileError(
                f"{place}: needs version {VERSION}, got {told['version']}; try a newer regard"
            )
        if _checksum_of(told) != checksum:
            raise FileError(f"{place}: needs its checksum, got another: {STATE} was damaged")
        for name, want in told["files"].items():
            if digest(place / name) != want:
                raise FileError(f"{place}: needs its checksum, got another: {name} was damaged")
    except (OSError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise FileError(f"{place}: needs a whole checkpoint, got a damaged one, {error}") from error
    return told


def is_in_parts(place: str | Path) -> bool:
    """Whether a checkpoint was written by many ranks, each its part.

    >>> is_in_parts(save_checkpoint(Checkpoint(1, {}, {}, {}), tempfile.mkdtemp()))
    False
    """
    return not (Path(place) / MODEL).exists()


def joined(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights and the optimizer's tensors under one roof, for files that hold both.

    >>> list(joined({"w": torch.ones(1)}, {"w.step": torch.ones(1)}))
    ['model.w', 'optimizer.w.step']
    """
    one = {f"model.{name}": x for name, x in model.items()}
    return one | {f"optimizer.{name}": x for name, x in optimizer.items()}


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and the optimizer's tensors, apart again.

    >>> split(joined({"w": torch.ones(1)}, {}))
    ({'w': tensor([1.])}, {})
    """
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for name, x in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = x
    return parts["model"], parts["optimizer"]


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
    place, wrong = last_good_place(folder)
    return None if place is None else load_checkpoint(place), wrong


def last_good_place(folder: str | Path) -> tuple[Path | None, list[str]]:
    """Where the newest checkpoint that is whole is, and what is wrong with newer ones.

    >>> last_good_place(tempfile.mkdtemp())
    (None, [])
    """
    wrong = []
    for place in reversed(checkpoints(folder)):
        try:
            check(place)
            return place, wrong
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


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every saved tensor of a model itself, a shared one once, under its first name.

    >>> list(tensors_of(nn.Linear(1, 1)))
    ['weight', 'bias']
    """
    first: dict[int, tuple[str, Tensor]] = {}
    for name, x in model.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    return {name: x.detach() for name, x in first.values()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of every saved tensor of a model, a shared one once, under its first name.

    >>> list(weights_of(nn.Linear(1, 1)))
    ['weight', 'bias']
    """
    return {name: x.cpu().clone().contiguous() for name, x in tensors_of(model).items()}


@torch.no_grad()
def fill(model: nn.Module, weights: Mapping[str, Tensor], what: str = "weights") -> None:
    """Put saved weights into a model of the same shape, also one whose ranks hold parts of it.

    >>> layer = nn.Linear(1, 1)
    >>> fill(layer, {"weight": torch.ones(1, 1), "bias": torch.zeros(1)})
    >>> layer(torch.tensor([2.0])).item()
    2.0
    """
    own = tensors_of(model)
    if {n: x.shape for n, x in weights.items()} != {n: x.shape for n, x in own.items()}:
        raise FileError(f"{what}: needs the weights of this model, got those of another")
    for name, x in weights.items():
        own[name].copy_(like(own[name], x))


def like(own: Tensor, x: Tensor) -> Tensor:
    """A whole tensor as `own` is held: itself, or the part of it that is this rank's.

    >>> like(torch.zeros(2), torch.ones(2))
    tensor([1., 1.])
    """
    if not hasattr(own, "full_tensor"):
        return x
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    # every rank has read the whole: each takes its part, nothing is sent
    whole = x.to(own.device)
    return distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    note = {"regard": "checkpoint"}  # a file without tensors and notes could not be read back
    write_whole(checkpoint.model, note, folder / MODEL)
    write_whole(checkpoint.optimizer, note, folder / OPTIMIZER)
    files = {name: digest(folder / name) for name in (MODEL, OPTIMIZER)}
    write_state(folder, checkpoint.step, checkpoint.state, files)


def write_state(folder: Path, step: int, state: dict[str, Any], files: dict[str, str]) -> None:
    """The last file of a checkpoint: plain numbers, and the digests of all others."""
    told: dict[str, Any] = {"version": VERSION, "step": step, "state": state, "files": files}
    _write_text(folder / STATE, json.dumps(told | {"checksum": _checksum_of(told)}))


def open_to_all(folder: Path) -> None:
    """Let those read it who read other folders of this user; mkdtemp is for secrets, 0700."""
    probe = folder / ".mode"  # shows the umask without setting it: other threads write files too
    probe.mkdir()
    folder.chmod(probe.stat().st_mode)
    probe.rmdir()


def _write_text(file: Path, text: str) -> None:
    """A small file, beside its place first: never half of it."""
    with beside(file) as place:
        place.write_text(text, encoding="utf-8")


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _checksum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
