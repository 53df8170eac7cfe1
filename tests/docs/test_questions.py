"""The page of questions shows what its commands print."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("make_questions", ROOT / "docs/make_questions.py")
assert spec is not None
assert spec.loader is not None
make_questions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_questions)

QUESTIONS = make_questions.QUESTIONS
COMMANDS = [
    pytest.param(question.command, id=f"{number}-{question.command.split()[2]}")
    for number, question in enumerate(QUESTIONS, 1)
]


def test_the_page_has_all_questions():
    page = (ROOT / "docs/work/questions.md").read_text()
    headings = re.findall(r"^## (\d+)\. (.*)$", page, re.MULTILINE)
    assert headings == [(str(n), question.text) for n, question in enumerate(QUESTIONS, 1)]
    assert len(QUESTIONS) == 25
    assert page.count("\n$ ") == len(COMMANDS)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_what_the_command_prints(command):
    page = (ROOT / "docs/work/questions.md").read_text()
    transcript = make_questions.transcript(command)
    assert transcript in page, f"run python docs/make_questions.py: {command}"
    assert "Traceback" not in transcript
    assert len(transcript.splitlines()) > 2


def test_an_outdated_page_fails():
    assert (
        make_questions.transcript("regard work self-attention --digits 3")
        not in (ROOT / "docs/work/questions.md").read_text()
    )
