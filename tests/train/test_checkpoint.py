"""Checkpoints: atomic, verified when read, the last valid one is loaded."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from regard.errors import FileError
from regard.train import (
    Checkpoint,
    average_checkpoints,
    copy_weights,
    list_checkpoints,
    load_checkpoint,
    load_last_valid,
    load_weights,
    save_checkpoint,
)
from regard.train import checkpoint as module


def make_checkpoint(step: int) -> Checkpoint:
    weights = {"a": torch.full((3, 2), float(step)), "n": torch.tensor(step)}
    return Checkpoint(step, weights, {"0.exp_avg": torch.randn(2)}, {"data": {"position": step}})


def test_a_removal_that_is_stopped_leaves_no_half_of_a_checkpoint(tmp_path, monkeypatch):
    def stopped(path, **_):
        if (state := path / "state.json").exists():  # others write in temporary folders
            state.unlink()
            raise SystemExit(143)

    save_checkpoint(make_checkpoint(1), tmp_path, keep=1)
    monkeypatch.setattr(module.shutil, "rmtree", stopped)
    with pytest.raises(SystemExit):
        save_checkpoint(make_checkpoint(2), tmp_path, keep=1)
    assert [load_checkpoint(path).step for path in list_checkpoints(tmp_path)] == [2]


def test_a_checkpoint_round_trips_bit_for_bit(tmp_path):
    saved = make_checkpoint(7)
    back = load_checkpoint(save_checkpoint(saved, tmp_path))
    assert (back.step, back.state) == (7, saved.state)
    for mine, theirs in ((back.model, saved.model), (back.optimizer, saved.optimizer)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_only_the_last_checkpoints_are_kept(tmp_path):
    for step in (9, 10, 100, 101):
        save_checkpoint(make_checkpoint(step), tmp_path, keep=2)
    assert [load_checkpoint(place).step for place in list_checkpoints(tmp_path)] == [100, 101]
    assert len(os.listdir(tmp_path)) == 2


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = list[tuple[str, list[str]]]()

    def record(name, real):
        def recorded(*paths):
            calls.append((name, [path.name.partition("-")[0] for path in paths]))
            return real(*paths)

        return recorded

    monkeypatch.setattr(module, "fsync_path", record("fsync", module.fsync_path))
    monkeypatch.setattr(module.os, "replace", record("replace", os.replace))
    save_checkpoint(make_checkpoint(7), tmp_path / "runs")
    last = [call for call in calls if call[1][0] in (".writing", "runs")]
    assert last == [("fsync", [".writing"]), ("replace", [".writing", "step"]), ("fsync", ["runs"])]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_loaded(tmp_path, name, damage):
    save_checkpoint(make_checkpoint(1), tmp_path)
    file = save_checkpoint(make_checkpoint(2), tmp_path) / name
    whole = file.read_bytes()
    middle = len(whole) * 3 // 4
    flipped = whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]  # among the numbers, not the names
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"flip": flipped, "cut": whole[:middle], "empty": b""}[damage])
    with pytest.raises(FileError, match="step-00000002: needs"):
        load_checkpoint(file.parent)
    checkpoint, problems = load_last_valid(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert len(problems) == 1


def test_a_changed_state_fails_its_checksum(tmp_path):
    file = save_checkpoint(make_checkpoint(2), tmp_path) / "state.json"
    header = json.loads(file.read_text())
    header["state"]["data"]["position"] = 3
    file.write_text(json.dumps(header))
    with pytest.raises(FileError, match=r"needs its checksum, got another: state\.json"):
        load_checkpoint(file.parent)


def test_a_full_disk_leaves_old_checkpoints_and_no_partial_ones(tmp_path, monkeypatch):
    save_checkpoint(make_checkpoint(1), tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_state", full)
    with pytest.raises(
        FileError, match=r"cannot take a checkpoint, No space left on device; .*try"
    ):
        save_checkpoint(make_checkpoint(2), tmp_path)
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert load_last_valid(tmp_path)[0].step == 1


def test_a_path_that_cannot_be_a_folder_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot take a checkpoint, "):
        save_checkpoint(make_checkpoint(1), tmp_path / "file" / "checkpoints")


def test_average_checkpoints_is_the_mean_of_the_weights(tmp_path):
    places = [save_checkpoint(make_checkpoint(step), tmp_path, keep=9) for step in (1, 2, 6)]
    mean = average_checkpoints(places)
    assert_close(mean["a"], torch.full((3, 2), 3.0))
    assert mean["n"] == 6
    assert mean["a"].dtype == load_file(places[0] / "model.safetensors")["a"].dtype


def test_weights_of_another_model_are_refused():
    with pytest.raises(FileError, match="needs the weights of this model, got those of another"):
        load_weights(torch.nn.Linear(2, 2), copy_weights(torch.nn.Linear(2, 3)))
