"""Runs and other processes, signals, corrupt files and folders of the same name."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import ConfigError, FileError
from regard.runs import find_run, fit, list_runs, override_settings
from regard.runs.lock import lock_folder
from regard.tasks import recipe
from regard.train import list_checkpoints, load_last_valid
from regard.train.checkpoint import PARTIAL_PREFIX

SMALL = [
    *(
        "languages=en,de",
        "kinds=duration",
        "vocab_texts=99",
        "valid_size=2",
        "test_size=2",
        "max_new_tokens=4",
    ),
    *("device=cpu", "dim=16", "heads=2", "ffn_dim=16", "steps=2", "batch_tokens=64", "log_every=1"),
]
HOLD = """
import sys, time
from pathlib import Path
from regard.runs.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    fit(override_settings(recipe("phrases"), SMALL), folder)
    return folder


def test_a_second_training_of_a_run_is_refused_until_the_first_has_ended(trained):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, trained], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    before = {file: file.stat().st_mtime_ns for file in trained.rglob("*")}
    try:
        for again in (lambda: fit(trained), lambda: fit(recipe("phrases"), trained)):
            with pytest.raises(FileError, match=f"a training that runs there .process {other.pid}"):
                again()
        assert {file: file.stat().st_mtime_ns for file in trained.rglob("*")} == before
    finally:
        other.kill()  # the lock of a killed process is free at once
        other.communicate()
    outcome = fit(trained)
    assert outcome.reason == "finished"
    assert not (trained / ".lock").exists()


def test_a_lock_is_not_shared_with_a_file_that_was_removed(tmp_path):
    with lock_folder(tmp_path):
        (tmp_path / ".lock").unlink()
        with lock_folder(tmp_path):  # a new file, a new lock; both let go without an error
            pass


def test_a_folder_made_in_vain_is_removed(tmp_path):
    with pytest.raises(FileError):
        fit(override_settings(recipe("multi30k-en-de"), ["folder=nowhere"]), tmp_path / "new")
    assert not (tmp_path / "new").exists()


SAVE = """
import sys, torch
from regard.train import Checkpoint, save_checkpoint
x = {str(n): torch.zeros(1 << 20) for n in range(6)}
for step in range(1, 1000):
    save_checkpoint(Checkpoint(step, x, {}, {"step": step}), sys.argv[1], keep=2)
    print(step, flush=True)
"""


def test_killed_while_it_saves_every_checkpoint_that_is_there_is_whole(tmp_path):
    for wait in (0.0, 0.011):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE, tmp_path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2):
            child.stdout.readline()
        time.sleep(wait)
        child.kill()
        child.communicate()
        found, wrong = load_last_valid(tmp_path)
        assert found is not None
        assert wrong == []
        assert len(list_checkpoints(tmp_path)) >= 1


def test_what_a_killed_training_left_is_removed_when_it_goes_on(trained):
    left = trained / "checkpoints" / f"{PARTIAL_PREFIX}x"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    fit(trained)
    assert not left.exists()


SHIELD = """
import signal, subprocess, sys, time
from regard.train.process import defer_signals, block_signals
with defer_signals() as asked:
    with block_signals():
        child = subprocess.Popen([sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE)
        print("ready", flush=True)
        deadline = time.monotonic() + 20
        while asked.signal is None and time.monotonic() < deadline:
            time.sleep(0.01)
    child.communicate(b"alive")
    print(asked.signal, flush=True)
"""


def test_a_signal_to_the_whole_group_is_noted_and_leaves_the_compile_workers_alive():
    main = subprocess.Popen(
        [sys.executable, "-c", SHIELD], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert main.stdout.readline() == "ready\n"
    os.killpg(main.pid, signal.SIGTERM)
    assert main.communicate(timeout=30)[0] == "alive\n15\n"


BAD_METRICS = ["{", "[1]", "3", '{"step": "x", "seconds": 1}', '{"loss": 1}', "\x00", "[" * 9999]
BAD_RESULTS = ["[", "[]", "{}", '{"step": 1}', "null", "[" * 99999, '{"step": 1e999}', '"x"']


@pytest.mark.parametrize("text", BAD_RESULTS)
def test_one_damaged_result_does_not_hide_the_other_runs(trained, tmp_path, text):
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        for file in ("recipe.json", "result.json", "metrics.jsonl"):
            (tmp_path / name / file).write_bytes((trained / file).read_bytes())
    (tmp_path / "bad" / "result.json").write_text(text)
    rows = {row["run"]: row["state"] for row in list_runs(tmp_path)}
    assert rows["good"] == "finished"
    assert "needs the result of a run, got a damaged file" in rows["bad"]


def test_damaged_metrics_are_left_out_and_the_table_still_stands(trained, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "recipe.json").write_bytes((trained / "recipe.json").read_bytes())
    good = json.dumps({"step": 7, "loss": 1.0, "seconds": 3.0})
    lines = [good, *BAD_METRICS]
    (tmp_path / "a" / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    found = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert found.exit_code == 0
    assert "7/2" in found.output


def test_settings_are_checked_together_so_their_order_does_not_matter():
    base = recipe("phrases")
    for pair in (("dim=60", "heads=3"), ("heads=3", "dim=60")):
        assert override_settings(base, pair).model.heads == 3
    with pytest.raises(ConfigError, match="dim: needs a multiple of heads=7"):
        override_settings(base, ["heads=7", "lr=1e-3"])
    assert override_settings(base, ["lr=1", "lr=2"]).train.lr == 2.0


def test_a_folder_of_other_files_does_not_hide_a_pretrained_model(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("morse").mkdir()
    Path("morse/first.wav").touch()
    assert find_run("morse").parent.name == "pretrained"
    assert find_run("./morse") == Path("morse")
    Path("morse/recipe.json").write_bytes((trained / "recipe.json").read_bytes())
    assert find_run("morse") == Path("morse")
