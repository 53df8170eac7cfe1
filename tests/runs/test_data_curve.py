"""The curve of a score against the data: what twice as many examples may bring."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from regard import models, tasks
from regard.cli import app
from regard.errors import ConfigError
from regard.runs import fit
from regard.runs.data_curve import data_curve, expected_gain, fit_curve
from regard.tasks.base import Recipe
from regard.train import TrainConfig
from regard.train.metrics import Tally

WORDS = ["red", "blue", "green", "one", "two", "three"]


def tally(accuracy, count=1000):
    right = torch.rand(count, generator=torch.Generator().manual_seed(0)) < accuracy
    rows = torch.stack([right.double(), torch.ones(count).double()], 1)
    return Tally(rows, lambda x: {"accuracy": x[0] / x[1], "error": 1 - x[0] / x[1]})


def test_a_power_law_is_continued():
    for score, values in (("accuracy", [1 - 0.4 * 2**-n for n in range(3)]), ("error", [4, 2, 1])):
        error = 0.1 if score == "accuracy" else 1
        assert expected_gain(values, score) == pytest.approx(error / 2)
    assert expected_gain([100 - 40, 100 - 20, 100 - 10], "bleu") == pytest.approx(5)
    assert expected_gain([0.9, 0.9, 0.9], "accuracy") == 0
    assert expected_gain([1.0, 1.0, 1.0], "accuracy") == 0


def test_the_interval_covers_test_examples_and_the_misfit():
    even = fit_curve("m", [tally(x) for x in (0.7, 0.78, 0.84)], "accuracy")
    assert even.interval is not None
    low, high = even.interval
    assert 0 < low < even.gain < high
    assert even.verdict.startswith("twice the data: about +4.")
    for bent in ((0.7, 0.84, 0.84), (0.84, 0.84, 0.84), (0.84, 0.8, 0.7)):
        curve = fit_curve("m", [tally(x) for x in bent], "accuracy")
        assert "no gain is visible" in curve.verdict
    worse = fit_curve("m", [tally(x) for x in (0.7, 0.78, 0.84)], "error")
    assert worse.verdict.startswith("twice the data: about -0.04")


@pytest.fixture
def recipe(tmp_path):
    lines = [f"{a} {b} {c},{a}" for a in WORDS[:3] for b in WORDS for c in WORDS]
    for name, count in (("train", 60), ("valid", 9), ("test", 30)):
        step = len(lines) // count
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines[::step]]))
    files: dict[str, Any] = {x: str(tmp_path / f"{x}.csv") for x in ("train", "valid", "test")}
    data = tasks.LabelsTask(tokenizer_type="words", **files)
    config = models.classifier_tiny(vocab=1, classes=1, dim=16, heads=2, layers=1)
    train = TrainConfig(steps=3, device="cpu", monitor="accuracy")
    return Recipe(name="words", data=data, model=config, train=train)


def test_the_curve_of_a_training_stands_in_its_report(recipe, tmp_path):
    fit(recipe, tmp_path / "run", skip=["card"], curve=True)
    (verdict,) = (json.loads((tmp_path / "run" / name).read_text()) for name in ("baseline.json",))
    assert verdict["curve"].startswith("twice the data: ")
    report = (tmp_path / "run" / "report.html").read_text()
    assert verdict["curve"][1:].replace("+", "+") in report
    fit(recipe, tmp_path / "other", skip=["card", "report"])
    assert "curve" not in json.loads((tmp_path / "other" / "result.json").read_text())["baseline"]


def test_the_model_has_a_curve_too_and_the_command_prints_it(recipe, tmp_path):
    curve = data_curve(recipe, train_model=True)
    assert curve.name == "model"
    assert len(curve.values) == 3
    (tmp_path / "task.toml").write_text(
        f'task = "labels"\n[data]\ntrain = "{recipe.data.train}"\n[model]\ntype = "classifier"\n'
        'layers = 1\ndim = 16\nheads = 2\n[train]\nsteps = 3\nmonitor = "accuracy"\n'
    )
    done = CliRunner().invoke(app, ["data", str(tmp_path / "task.toml"), "--curve"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[-2].startswith("linear model on n-grams: accuracy ")
    assert lines[-1].startswith("twice the data: ")


def share(task: Any, part: float) -> Any:
    return task.with_share(part)


def test_a_share_of_the_train_split_leaves_the_others_as_they_are(recipe, tmp_path):
    half = share(recipe.data, 0.5).load().examples
    whole = recipe.data.load().examples
    assert (half["valid"], half["test"]) == (whole["valid"], whole["test"])
    assert set(half["train"]) < set(whole["train"])
    assert set(share(recipe.data, 0.25).load().examples["train"]) < set(half["train"])
    (tmp_path / "a.tsv").write_text("".join(f"{n} a b\t{n} c d\n" for n in range(400)))
    pairs = tasks.PairsTask(folder=str(tmp_path), train=("a.tsv",))
    assert 140 < len(share(pairs, 0.5).pairs("train")) < 220 < len(pairs.pairs("train"))
    assert share(pairs, 0.5).pairs("test") == pairs.pairs("test")
    for split_by in ("files", "tail"):
        for n in range(20):
            (tmp_path / f"{n}.txt").write_text(f"{n} to be or not to be " * 20)
        text = tasks.TextTask(folder=str(tmp_path), split_by=split_by)
        sizes = [sum(map(len, x.texts("train"))) for x in (share(text, 0.5), text)]
        assert sizes[0] / sizes[1] == pytest.approx(0.5, rel=0.01)
        assert share(text, 0.5).texts("test") == text.texts("test")
    with pytest.raises(ConfigError, match="train_share: needs more than 0, at most 1, got 0"):
        share(recipe.data, 0.0)
