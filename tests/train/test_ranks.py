"""Distributed training: the same as on one rank, stopped together, resumed on any number."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from rank_worker import make
from torch.testing import assert_close
from toy import update

from regard.errors import ConfigError, TrainError
from regard.train import (
    TrainConfig,
    copy_weights,
    list_checkpoints,
    load_checkpoint,
    load_last_valid,
    read_metrics,
)
from regard.train.distributed import Ranks, choose_strategy, init_distributed

HERE = Path(__file__).resolve().parent
ENV = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}


def run(world: int, *jobs: dict) -> list[int]:
    """Run the jobs one after the other on `world` ranks; returns their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = os.environ | ENV | {"MASTER_PORT": port, "WORLD_SIZE": str(world)}
    command = [sys.executable, str(HERE / "rank_worker.py"), *map(json.dumps, jobs)]
    group = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        return json.loads(group.communicate(timeout=200)[0])
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(group.pid, signal.SIGKILL)


def reports(folder: Path, world: int) -> list[dict]:
    return [json.loads((folder / f"report-{n}.json").read_text()) for n in range(world)]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder)]


def assert_same_weights(one: dict, two: dict) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert_close(one[name], two[name], atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One rank, uninterrupted."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = make(Ranks(), "none", folder)
    trainer.run()
    return folder, copy_weights(trainer.model)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two ranks: trained, interrupted, with a NaN loss."""
    folder = tmp_path_factory.mktemp("two")
    codes = run(
        2,
        {"strategy": "ddp", "folder": str(folder / "ddp")},
        {
            "strategy": "fsdp",
            "folder": str(folder / "parts"),
            "event": "term",
            "to": 1,
            "before": 2,
        },
        {"strategy": "ddp", "folder": str(folder / "nan"), "event": "nan", "to": 1, "before": 3},
        {"strategy": "fsdp", "folder": str(folder / "best"), "scores": [2.0, 1.0, 3.0]}
        | {"changes": {"evaluate_every": 2}},
    )
    assert codes == [0, 0]
    return folder


@pytest.fixture(scope="module")
def three(two):
    """Three ranks: resumed from two, interrupted; then one was killed."""
    codes = run(
        3,
        {"strategy": "fsdp", "folder": str(two / "parts"), "resume": True}
        | {"event": "term", "to": 2, "before": 4},
        {"strategy": "ddp", "folder": str(two / "killed"), "event": "kill", "to": 2, "before": 5},
    )
    assert codes[:2] == [0, 0]
    assert codes[2] == -9
    return two


# ---- properties


def test_two_ddp_ranks_train_as_one_rank(whole, two):
    folder, weights = whole
    assert losses(two / "ddp") == pytest.approx(losses(folder), abs=1e-5)
    assert len(losses(folder)) == 6
    assert_same_weights(torch.load(two / "ddp" / "end.pt"), weights)


def test_sharded_ranks_end_with_the_weights_of_the_best_evaluation(two):
    assert [one["weights_step"] for one in reports(two / "best", 2)] == [4, 4]
    trainer = make(Ranks(), "none", None)
    for _ in range(4):
        update(trainer)
    trainer.prefetcher.close()
    assert_same_weights(torch.load(two / "best" / "end.pt"), copy_weights(trainer.model))


def test_a_signal_to_one_rank_stops_all_after_the_same_update(two):
    for one in reports(two / "parts", 2):
        assert (one["step"], one["reason"], one["signal"]) == (2, "interrupted", 15)


def test_a_training_on_two_then_three_then_one_rank_is_the_same(whole, three, tmp_path):
    assert [one["began"] for one in reports(three / "parts", 3)] == [2, 2, 2]
    assert [one["step"] for one in reports(three / "parts", 3)] == [4, 4, 4]
    trainer = make(Ranks(), "none", three / "parts")
    assert trainer.resume() == []
    assert trainer.step == 4
    trainer.run()
    folder, weights = whole
    assert losses(three / "parts") == pytest.approx(losses(folder), abs=1e-5)
    assert_same_weights(copy_weights(trainer.model), weights)


def test_a_nan_loss_on_one_rank_stops_all_and_names_it(two):
    for one in reports(two / "nan", 2):
        assert "TrainError: loss: needs a finite number, got nan" in one["error"]
        assert "update 3, its batch 1 of rank 1 from data position" in one["error"]
    checkpoint, _ = load_last_valid(two / "nan" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.step == 2
    assert all(x.isfinite().all() for x in checkpoint.model.values())


def test_a_killed_rank_ends_all_with_an_error_and_damages_nothing(three):
    for n in (0, 1):
        one = json.loads((three / "killed" / f"report-{n}.json").read_text())
        assert "Error: ranks: need all 3 to go on, got one that is gone" in one["error"]
        assert "try resume" in one["error"]
    checkpoint, problems = load_last_valid(three / "killed" / "checkpoints")
    assert (checkpoint.step, problems) == (3, [])


def test_a_damaged_shard_fails_its_checksum(three):
    place = list_checkpoints(three / "parts" / "checkpoints")[0]
    part = sorted(place.glob("shard-*"))[-1]
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"needs its checksum, got another: {part.name}"):
        load_checkpoint(place)
    part.write_bytes(content)


@pytest.mark.slow
def test_a_training_of_one_rank_resumes_with_fsdp(whole, tmp_path):
    first = make(Ranks(), "none", tmp_path)
    real = first.updater.step

    def stop(objective, step, lr):
        known = real(objective, step, lr)
        if step == 3:
            os.kill(os.getpid(), 15)
        return known

    first.updater.step = stop
    assert first.run().step == 3
    assert run(3, {"strategy": "fsdp", "folder": str(tmp_path), "resume": True}) == [0, 0, 0]
    folder, weights = whole
    assert losses(tmp_path) == pytest.approx(losses(folder), abs=1e-5)
    assert_same_weights(torch.load(tmp_path / "end.pt"), weights)


@pytest.mark.slow
def test_a_ddp_training_of_two_ranks_resumes_on_three(whole, tmp_path):
    stop = {"strategy": "ddp", "folder": str(tmp_path), "event": "term", "to": 0, "before": 5}
    assert run(2, stop) == [0, 0]
    assert run(3, {"strategy": "ddp", "folder": str(tmp_path), "resume": True}) == [0, 0, 0]
    folder, weights = whole
    assert losses(tmp_path) == pytest.approx(losses(folder), abs=1e-5)
    assert_same_weights(torch.load(tmp_path / "end.pt"), weights)


@pytest.mark.slow
def test_torchrun_trains_and_resumes_by_the_command_line(tmp_path):
    settings = "languages=en,de kinds=duration vocab_texts=200 valid_size=4 test_size=4 "
    settings += "max_new_tokens=8 dim=16 heads=2 "
    settings += "layers=1 steps=6 save_every=2 device=cpu"
    sets = [part for one in settings.split() for part in ("--set", one)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    env, out = os.environ | {"OMP_NUM_THREADS": "1"}, tmp_path / "run"

    def regard(ranks: int, *words: str) -> subprocess.CompletedProcess:
        command = [*launch, str(ranks), "-m", "regard", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)

    first = regard(2, "train", "phrases", "--out", str(out), *sets, "--set", "train.parallel=fsdp")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("finished at step 6") == 1  # one rank speaks for all
    assert (out / "result.json").exists()
    shutil.rmtree(list_checkpoints(out / "checkpoints")[-1])
    again = regard(1, "resume", str(out), "--set", "train.parallel=none")
    assert again.returncode == 0, again.stderr
    assert [line["step"] for line in read_metrics(out) if "loss" in line] == [6]  # made again
    twice = regard(2, "train", "phrases", "--out", str(out), *sets)
    assert twice.stderr.count("needs to be without a run, got one; try regard resume") == 1


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_invalid_ranks_and_strategies_raise(monkeypatch):
    for strategy in ("ddp", "fsdp"):
        with pytest.raises(ConfigError, match=f"needs 2 or more ranks for {strategy}, got 1; try"):
            choose_strategy(TrainConfig(steps=1, parallel=strategy), Ranks())
    with pytest.raises(ConfigError, match="parallel: needs ddp or fsdp for 2 ranks, got none"):
        choose_strategy(TrainConfig(steps=1, parallel="none"), Ranks(0, 2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="WORLD_SIZE: needs RANK beside 2, got none; try torch"):
        init_distributed()
    with (
        pytest.raises(TrainError, match="ranks: need all 2 to go on, got one that is gone"),
        Ranks(0, 2).collective(),
    ):
        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:5")
    with pytest.raises(RuntimeError, match="size mismatch"), Ranks(0, 2).collective():
        raise RuntimeError("size mismatch")
