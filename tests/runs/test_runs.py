"""A run is a folder that can be stopped, resumed, loaded and listed; damage raises clearly."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from regard import models
from regard.cli import app
from regard.errors import ConfigError, FileError
from regard.runs import fit, list_runs, load_run, new_run_folder, override_settings
from regard.tasks import SearchConfig, recipe, translate_texts
from regard.train import copy_weights, read_metrics, score_texts
from regard.train.updates import Updater

SMALL = [
    *(
        "languages=en,de,fr",
        "kinds=duration",
        "vocab_texts=300",
        "valid_size=4",
        "test_size=6",
        "max_new_tokens=6",
    ),
    *(
        "device=cpu",
        "dim=16",
        "heads=2",
        "layers=1",
        "decoder_layers=1",
        "ffn_dim=16",
        "dropout=0.1",
    ),
    *("steps=8", "batch_tokens=256", "save_every=3", "evaluate_every=4", "log_every=1", "warmup=2"),
]


def small(*more: str):
    return override_settings(recipe("phrases"), [*SMALL, *more])


def stop_after(monkeypatch, steps: int) -> None:
    real = Updater.step

    def stop(updater, objective, step, lr):
        if step == steps:
            signal.raise_signal(signal.SIGTERM)
        return real(updater, objective, step, lr)

    monkeypatch.setattr(Updater, "step", stop)


def timeless(folder) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(folder)]


def test_results_have_the_sacrebleu_signature():
    scores = score_texts(["the cat sat here"], ["the cat sat here"])
    assert (scores["exact"], round(scores["bleu"], 6)) == (1.0, 100.0)
    assert scores["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_a_run_has_all_it_needs_to_be_used_again(tmp_path):
    outcome = fit(small("average_last=2"), tmp_path / "a")
    assert outcome.reason == "finished"
    run = load_run(tmp_path / "a")
    assert run.recipe == small("average_last=2")
    assert run.result["test"]["exact"] == outcome.scores["exact"]
    assert {"loss", "exact", "bleu", "signature"} == set(run.result["valid"])
    answers = translate_texts(
        run.model,
        run.tokenizer,
        ["3 days"] * 2,
        ["de", "fr"],
        SearchConfig(beam_width=3, max_new_tokens=9),
    )
    assert len(answers) == 2
    assert [line["step"] for line in run.metrics if "loss" in line] == list(range(1, 9))


def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_not(tmp_path, monkeypatch):
    fit(small(), tmp_path / "whole")
    with monkeypatch.context() as patched:
        stop_after(patched, 5)
        outcome = fit(small(), tmp_path / "parts")
    assert (outcome.step, outcome.signal) == (5, signal.SIGTERM)
    half = load_run(tmp_path / "parts")  # can be used already
    assert half.result == {}
    outcome = fit(tmp_path / "parts")
    assert (outcome.reason, outcome.damaged) == ("finished", [])
    one, two = (copy_weights(models.load(tmp_path / name)) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("whole", "parts")]
    assert results[0]["test"] == results[1]["test"]


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_ends_the_same(tmp_path):
    fit(small("steps=3"), tmp_path / "a")
    weights = copy_weights(models.load(tmp_path / "a"))
    for name in ("model.safetensors", "result.json"):
        (tmp_path / "a" / name).unlink()
    for place in (tmp_path / "a" / "checkpoints").iterdir():
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    fit(tmp_path / "a")
    again = copy_weights(models.load(tmp_path / "a"))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert [line["step"] for line in read_metrics(tmp_path / "a") if "loss" in line] == [1, 2, 3]


def test_runs_are_listed_with_what_differs(tmp_path):
    for name, lr in (("a", "0.001"), ("b", "0.01")):
        fit(small("steps=2", f"lr={lr}"), tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "recipe.json").write_text("{")
    a, b, c = list_runs(tmp_path)
    assert (a["differs"], b["differs"]) == ({"train.lr": 0.001}, {"train.lr": 0.01})
    assert (a["step"], a["split"], a["state"]) == (2, "test", "finished")
    assert "needs a recipe, got a damaged one" in c["state"]
    shown = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert shown.exit_code == 0
    assert "train.lr=0.01" in shown.output


def test_a_new_run_never_takes_the_folder_of_another(tmp_path):
    assert new_run_folder(tmp_path, "phrases").name == "phrases"
    (tmp_path / "phrases").mkdir()
    assert new_run_folder(tmp_path, "phrases").name == "phrases-2"


def test_the_commands_train_resume_and_say_what_is_wrong(tmp_path):
    run, folder = CliRunner(), tmp_path / "a"
    settings = [*(x for x in SMALL if x != "warmup=2"), "warmup=16", "lr=0.01"]
    given = [part for setting in settings for part in ("--set", setting)]
    done = run.invoke(app, ["train", "phrases", "--out", str(folder), *given])
    assert done.exit_code == 0, done.output
    warning = "warmup: needs at most steps=8 to reach lr=0.01, got 16, so that it ends at 0.005"
    assert f"warning: {warning}" in " ".join(done.output.split())
    assert "finished at step 8; on the test split: loss" in done.output
    assert "nrefs:1|" in done.output
    again = run.invoke(app, ["resume", str(folder)])
    assert again.exit_code == 0
    assert "finished at step 8" in again.output
    less = run.invoke(app, ["resume", str(folder), "--set", "steps=7"])
    assert less.exit_code == 2
    assert "steps: needs at least 8, the saved step of" in " ".join(less.output.split())
    assert load_run(folder).recipe.train.steps == 8
    for words in (["train", "phrase"], ["train", "phrases", "--set", "lrr=1"], ["resume", "no"]):
        assert run.invoke(app, words).exit_code == 2


@pytest.mark.slow
def test_sigterm_to_the_command_saves_and_resume_ends_like_the_whole(tmp_path):
    given = [part for setting in (*SMALL, "steps=400") for part in ("--set", setting)]
    command = [sys.executable, "-m", "regard"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run([*command, "train", "phrases", "--out", str(whole), *given], check=True, env=env)
    running = subprocess.Popen([*command, "train", "phrases", "--out", str(parts), *given], env=env)
    while not (parts / "metrics.jsonl").exists():
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 128 + signal.SIGTERM
    assert not (parts / "model.safetensors").exists()
    subprocess.run([*command, "resume", str(parts)], check=True, env=env)
    one, two = (copy_weights(models.load(folder)) for folder in (whole, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_folders_that_cannot_hold_a_run_are_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file/run: cannot be written, Not a directory"):
        fit(small(), tmp_path / "file" / "run")
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(FileError, match="needs to be without a run, got one; try regard resume"):
        fit(small(), tmp_path)
    with pytest.raises(FileError, match="needs a recipe, got a damaged one"):
        fit(tmp_path)
    with pytest.raises(FileError, match="needs to be a folder with runs, got no such folder"):
        list_runs(tmp_path / "nowhere")
    with pytest.raises(
        ConfigError, match="recipe: needs a .toml file or one of .*, got 'frases'; try phrases"
    ):
        recipe("frases")


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    """Runs that differ in the steps after their training, by what was skipped."""
    place = tmp_path_factory.mktemp("skipped")
    for skip in ((), ("calibrate",), ("evaluate",), ("card", "report")):
        fit(small("steps=2"), place / "-".join(("run", *skip)), skip=skip)
    return place


@pytest.mark.parametrize(
    ("run", "lacks"),
    [
        ("run", set()),
        ("run-calibrate", {"calibration.json"}),
        ("run-evaluate", set()),
        ("run-card-report", {"CARD.md", "report.html"}),
    ],
)
def test_each_step_after_training_can_be_skipped(skipped, run, lacks):
    after = {"calibration.json", "result.json", "CARD.md", "report.html", "model.safetensors"}
    assert after - {file.name for file in (skipped / run).iterdir()} == lacks
    scores = load_run(skipped / run).result["test"]
    assert (scores == {}) == (run == "run-evaluate")
    assert models.load(skipped / run) is not None


def test_a_report_without_an_evaluation_does_not_evaluate(skipped):
    assert "No evaluation yet" in (skipped / "run-evaluate" / "report.html").read_text()


@pytest.mark.parametrize("skip", [["reports"], ["weights"], ["result"], "report", [""]])
def test_a_step_that_cannot_be_skipped_is_refused_before_anything_is_written(tmp_path, skip):
    with pytest.raises(
        ConfigError, match="skip: needs baseline, calibrate, evaluate, card, report, got "
    ):
        fit(small(), tmp_path / "run", skip=skip)
    assert not (tmp_path / "run").exists()


def test_a_recipe_alone_trains_in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("phrases", "phrases-2"):
        outcome = fit(small(), settings=["steps=1"], skip=["evaluate", "report", "card"])
        assert str(outcome.folder) == f"runs/{name}"
    with pytest.raises(ConfigError, match="recipe: needs a Recipe for a new run, got 'phrases'"):
        fit("phrases", tmp_path / "other")


def test_the_command_skips_steps_and_says_what_its_scores_are_of(tmp_path):
    options = [x for setting in (*SMALL, "steps=1") for x in ("--set", setting)]
    skip = ["--skip", "evaluate", "--skip", "report"]
    done = CliRunner().invoke(
        app, ["train", "phrases", "--out", str(tmp_path / "r"), *options, *skip]
    )
    assert done.exit_code == 0, done.output
    assert "on the valid split: loss" in done.output
    assert "is the report" not in done.output
    assert (tmp_path / "r" / "CARD.md").exists()
    assert not (tmp_path / "r" / "report.html").exists()
