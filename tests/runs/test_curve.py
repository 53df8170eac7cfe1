"""Warnings about the curve of a training."""

import json

from regard.runs import fit, override_settings
from regard.runs.post_steps import curve_warnings
from regard.tasks import recipe
from regard.train import TrainConfig


def lines(values, name="loss", every=100):
    return [{"step": every * n, f"valid_{name}": x} for n, x in enumerate(values, 1)]


def test_a_best_step_in_the_first_fifth_is_named_with_fewer_steps():
    config = TrainConfig(steps=500)
    (line,) = curve_warnings(lines([1.0, 1.1, 1.2, 1.3, 1.4]), config, "runs/a")
    assert line.startswith("the best loss was at step 100 of 500, 1, and 1.4 at the end: it overfi")
    assert "--set steps=150" in line
    assert curve_warnings(lines([1.0, 0.9, 1.2, 1.3, 1.4]), config, "runs/a") == []


def test_a_curve_that_ends_rising_is_named_with_more_steps():
    config = TrainConfig(steps=500, monitor="accuracy")
    rising = lines([0.1, 0.3, 0.5, 0.6, 0.8], "accuracy")
    (line,) = curve_warnings(rising, config, "runs/a")
    assert "still getting better at step 500: 0.6 at step 400, 0.8 at the end" in line
    assert line.endswith("try regard resume runs/a --set steps=1000")
    flat = lines([0.1, 0.5, 0.7, 0.78, 0.8], "accuracy")
    assert curve_warnings(flat, config, "runs/a") == []


def test_a_start_that_training_made_no_better_is_named():
    metrics = [{"step": 0, "valid_loss": 0.5}, *lines([1.0, 0.9, 0.8, 0.7, 0.6])]
    (line,) = curve_warnings(metrics, TrainConfig(steps=500), "runs/a")
    assert line.startswith("the best loss was 0.5, before the first update, and 0.6 at the end")
    assert line.endswith("or regard train … --baseline-only")


def test_few_evaluations_and_other_metrics_say_nothing():
    config = TrainConfig(steps=300)
    assert curve_warnings(lines([3.0, 2.0, 1.0]), config, "runs/a") == []
    assert curve_warnings(lines([3.0, 2.0, 1.0, 0.5], "error"), config, "runs/a") == []


def test_a_training_prints_the_warning_and_keeps_it(tmp_path, capsys):
    small = ["languages=en,de", "kinds=duration", "vocab_texts=99", "valid_size=4", "test_size=4"]
    small += ["dim=16", "heads=2", "layers=1", "decoder_layers=1", "ffn_dim=16", "warmup=1"]
    small += ["steps=8", "evaluate_every=2", "batch_tokens=128", "device=cpu", "lr=1e-2"]
    small += ["monitor=loss", "max_new_tokens=4", "schedule=constant"]
    fit(override_settings(recipe("phrases"), small), tmp_path / "run", show=True)
    assert "warning: loss was still getting better at step 8" in capsys.readouterr().out
    (line,) = json.loads((tmp_path / "run" / "result.json").read_text())["warnings"]
    for file in ("CARD.md", "report.html"):
        assert line.partition(";")[0] in (tmp_path / "run" / file).read_text(), file
