"""`regard quantize` writes a run that every command accepts, and reports its scores."""

import shutil

from typer.testing import CliRunner

from regard.cli import app
from regard.runs import find_run, load_run


def test_sizes_and_scores_are_reported_and_the_folder_is_a_run(tmp_path):
    folder, source = tmp_path / "small", tmp_path / "glyphs"
    shutil.copytree(find_run("glyphs"), source)
    recipe = source / "recipe.json"
    recipe.write_text(recipe.read_text().replace('"test_size": 2000', '"test_size": 200'))
    done = CliRunner().invoke(app, ["quantize", str(source), "-o", str(folder)])
    assert done.exit_code == 0
    size, loss, accuracy = done.stdout.splitlines()
    assert size.endswith("2.02 MB before\t1.07 MB after")
    assert loss.startswith("loss\t0.0")
    name, before, after = (part.split()[0] for part in accuracy.split("\t"))
    assert name == "accuracy"
    assert abs(float(before) - float(after)) < 0.01
    run = load_run(folder)
    assert round(run.result["test"]["accuracy"], 4) == float(after)
    assert (run.recipe.name, run.recipe.data.test_size) == ("glyphs", 200)
    assert run.calibration == load_run(source).calibration


def test_without_scores_none_are_claimed(tmp_path):
    folder = tmp_path / "small"
    done = CliRunner().invoke(app, ["quantize", "phrases", "--no-score", "-o", str(folder)])
    assert len(done.stdout.splitlines()) == 1
    assert load_run(folder).result["test"] == {}
    done = CliRunner().invoke(app, ["translate", str(folder), "--to", "de", "3 days"])
    assert done.stdout == "3 Tage\n"
