"""The progress line of a training."""

import regard as rg
from regard.train.process import Progress


def test_the_speed_is_in_the_unit_of_the_task():
    progress = Progress(10, unit="images")
    progress.update(1, 0.5, 400, 1e-3)
    assert "200 images/s" in progress.format_line(1, 1e-3, 2.0)


def test_every_task_names_what_its_loss_is_a_mean_over():
    units = {"glyphs": "images", "morse": "recordings", "phrases": "tokens", "stdlib": "tokens"}
    assert {name: rg.tasks.recipe(name).data.unit for name in units} == units


def test_a_training_prints_it(tmp_path, capsys):
    settings = ["steps=1", "train_images=60", "valid_size=6", "test_size=6", "device=cpu"]
    recipe = rg.runs.override_settings(rg.tasks.recipe("glyphs"), settings)
    rg.runs.fit(recipe, tmp_path / "run", show=True)
    assert " images/s" in capsys.readouterr().out
