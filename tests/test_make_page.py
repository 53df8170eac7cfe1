"""`make page` opens the page, with real weights where they can be fetched."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def run_make(folder: Path, *, failing: str) -> str:
    """The output of `make page` with commands that only print what they were called with."""
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / ".venv/bin").mkdir(parents=True)
    for name in ("pip", "regard"):
        command = folder / ".venv/bin" / name
        fails = (
            f'case "$*" in *{failing}*) echo long reason >&2; exit 2;; esac\n' if failing else ""
        )
        command.write_text(f'#!/bin/sh\n{fails}echo "called {name} $*"\n')
        command.chmod(0o755)
    (folder / ".venv/.installed").touch()
    done = subprocess.run(
        ["make", "--no-print-directory", "page"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_it_fetches_smollm2_and_opens_the_page(tmp_path):
    lines = run_make(tmp_path, failing="").splitlines()
    called = [line.removeprefix("called ") for line in lines if line.startswith("called ")]
    assert called[1:] == ["regard get smollm2", "regard serve --open"]


@pytest.mark.parametrize("failing", ["install", "smollm2"])
def test_without_a_network_one_line_says_so_and_the_page_opens(tmp_path, failing):
    output = run_make(tmp_path, failing=failing)
    assert output.count("could not be fetched") == 1
    assert "long reason" not in output
    assert output.splitlines()[-1] == "called regard serve --open"
