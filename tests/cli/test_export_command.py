"""`regard export` writes files and reports their difference from torch."""

import json
import re

import pytest
from typer.testing import CliRunner

from regard.cli import app


def test_files_their_sizes_and_differences_are_reported(tmp_path):
    folder = tmp_path / "a" / "b"
    done = CliRunner().invoke(app, ["export", "glyphs", "-o", str(folder)])
    assert done.exit_code == 0
    [line] = done.stdout.splitlines()
    assert re.fullmatch(r".*classifier\.onnx\t4\.\d MB\tat most \d\.\de-0\d from torch", line)
    about = json.loads((folder / "export.json").read_text())
    assert about["classes"][:2] == ["0", "1"]
    assert about["image"] == 24


def test_sound_comes_with_its_rate_and_frames(tmp_path):
    assert CliRunner().invoke(app, ["export", "morse", "-o", str(tmp_path)]).exit_code == 0
    about = json.loads((tmp_path / "export.json").read_text())
    sizes = {"blank": 0, "rate": 8000, "window": 200, "hop": 80, "chunk_frames": 4}
    sizes |= {"peak": 1.0, "dither": 0.03, "padding": 1.0}
    assert {name: about[name] for name in sizes} == sizes


@pytest.mark.usefixtures("users_view")
def test_an_unknown_run_is_one_line_and_exit_code_2(tmp_path):
    done = CliRunner().invoke(app, ["export", "phrase", "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert "try phrases" in done.stderr


@pytest.mark.usefixtures("users_view")
def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["export", "glyphs", "-o", str(tmp_path / "file")])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
