"""`regard cost`, as a user types it."""

import pytest
from typer.testing import CliRunner

from regard import models
from regard.cli import app
from regard.runs.loading import preset_names


def asked(*args):
    return CliRunner().invoke(app, ["cost", *args])


def test_the_papers_base_model_has_63_million_parameters_with_37000_words():
    done = asked("translator_base", "--vocab", "37000", "--source", "512", "--target", "64")
    assert done.exit_code == 0
    assert "63,082,496" in done.stdout
    assert "BL(2Nd² + 2Md² + 2NMd)" in done.stdout


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_cost(name):
    assert asked(name).exit_code == 0


def test_a_saved_model_has_a_cost_and_a_wrong_name_gets_a_hint(tmp_path):
    models.save(models.LanguageModel(models.language_tiny(vocab=10)), tmp_path)
    assert "100,736" in asked(str(tmp_path)).stdout  # all its parameters
    done = asked("translator_bass")
    assert done.exit_code == 2
    assert "try translator_base" in done.stderr


def test_a_preset_is_drawn_from_the_command_line(tmp_path):
    out = tmp_path / "blocks.svg"
    done = CliRunner().invoke(app, ["cost", "translator_tiny", "--diagram", str(out)])
    assert (done.exit_code, out.read_text()[:4]) == (0, "<svg")
    assert CliRunner().invoke(app, ["cost", "translator_tiny", "--diagram", "b.png"]).exit_code == 2
