"""The pages on own data: their commands are run as printed, and print what the pages show."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.tasks.proposals.proposal import Proposal

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("pairs", "text", "images", "speech", "labels", "tags")
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read_commands(kind: str) -> list[tuple[str, str]]:
    """The commands of a page, each with the output that is shown for it, or ""."""
    commands: list[tuple[str, str]] = []
    for language, text in BLOCK.findall((ROOT / f"docs/train/{kind}.md").read_text()):
        if language == "sh":
            commands.append((text, ""))
        else:
            commands[-1] = (commands[-1][0], text)
    return commands


def assert_shown(shown: str, output: str) -> None:
    """Every line of the page is in the output, whatever the numbers are.

    They vary with the CPU and the libraries, and so does whether the last step was the best.
    """

    def forms(text: str) -> list[str]:
        lines = re.sub(r", best at [\d,]+", "", text).splitlines()
        return [re.sub(r"[\d,.:]+", "#", line) for line in lines if "…" not in line]

    assert [line for line in forms(shown) if line not in forms(output)] == []


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def bash(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a low confidence
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_data_of_a_page_is_made_and_a_recipe_proposed(kind, monkeypatch):
    monkeypatch.setattr(Proposal, "measure_step", lambda self: None)  # seconds of training
    (make, _), (new, shown), *_ = read_commands(kind)
    bash(make)
    done = CliRunner().invoke(app, shlex.split(new)[1:])
    assert done.exit_code == 0, done.output
    assert_shown(shown, done.stderr + done.stdout)
    page = (ROOT / f"docs/train/{kind}.md").read_text()
    written = {line.partition("  #")[0] for line in Path("task.toml").read_text().splitlines()}
    for block in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        assert [x for x in block.splitlines() if x.partition("  #")[0] not in written] == []


@pytest.mark.parametrize("best", ["", ", best at 240"])
def test_a_last_line_is_shown_whichever_step_was_the_best(best):
    shown = "runs/a: finished at step 300; on the test split: loss 0.5338"
    assert_shown(shown, f"runs/a: finished at step 1,200{best}; on the test split: loss 1.5")
    with pytest.raises(AssertionError):
        assert_shown(shown, f"runs/a: interrupted at step 1,200{best}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_of_a_page_prints_what_is_shown(kind):
    for command, shown in read_commands(kind):
        output = bash(command)
        if command.startswith(("regard new", "regard train")):
            assert_shown(shown, output)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_under_two_screens(kind):
    assert len((ROOT / f"docs/train/{kind}.md").read_text().splitlines()) <= 76
