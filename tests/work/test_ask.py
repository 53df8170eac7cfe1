"""`regard ask`: each question of five courses is found by its own words and by six others."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard import work
from regard.claims import CLAIMS, claim_answers
from regard.cli import app
from regard.errors import WorkError
from regard.files import parse_toml
from regard.work.ask import FOLDER, answers
from regard.work.problem import problem_names

run = CliRunner()

QUESTIONS = parse_toml(Path(__file__).with_name("questions.toml").read_text())


@pytest.mark.parametrize("title", QUESTIONS)
def test_a_question_is_found_by_its_own_words_and_by_six_others(title):
    for wording in QUESTIONS[title]:
        assert work.ask(wording).title.startswith(title), (wording, work.find_answers(wording, 3))


def test_every_question_of_the_courses_has_one_answer():
    titles = [answer.title for answer in answers()]
    assert len(titles) == len(QUESTIONS) == 56
    for title in QUESTIONS:
        assert sum(one.startswith(title) for one in titles) == 1, title


@pytest.mark.parametrize("answer", answers(), ids=lambda answer: answer.title[:40])
def test_an_answer_is_whole(answer):
    prose = answer.text.split("\n\n")[0]
    assert 3 <= len(re.findall(r"[.:?!](?:\s|$)", prose)) <= 9, prose
    assert "In numbers: " in answer.text
    assert "Often wrong: " in answer.text
    assert "\n    " in answer.text  # the equation
    assert set(answer.claims) <= set(CLAIMS), answer.claims
    name, command, *rest = answer.command.split()
    assert name == "regard"
    assert run.invoke(app, [command, "--help"]).exit_code == 0
    if command == "work" and rest:
        assert rest[0] in problem_names()


def test_a_question_of_something_else_names_the_nearest():
    with pytest.raises(WorkError, match="got 'how do I bake bread'"):
        work.ask("how do I bake bread")
    with pytest.raises(WorkError, match="needs 1 to 1000 characters"):
        work.ask("  ")


def test_misspelt_words_are_found():
    assert "vanishing" in work.ask("vanshing and explodding gradeints of rnns").title


def test_the_command_answers_lists_and_refuses():
    found = run.invoke(app, ["ask", "why", "divide", "by", "sqrt(d)"])
    assert found.exit_code == 0
    assert "Var(q · k) = d" in found.output
    assert "Near it:" in found.output
    assert run.invoke(app, ["ask"]).output.count("\n  ") == 56
    assert len(run.invoke(app, ["ask", "positions", "--list", "3"]).output.splitlines()) == 3
    assert run.invoke(app, ["ask", "bake bread"]).exit_code == 2


def test_a_wording_of_the_test_is_none_of_the_index():
    known = {wording for answer in answers() for wording in answer.asked}
    tested = {wording for wordings in QUESTIONS.values() for wording in wordings[-4:]}
    assert len(tested - known) > 0.95 * len(tested)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_found_by_its_statement(name):
    found = work.find_answers(CLAIMS[name].statement, 1, claim_answers())
    assert found[0][1].claims == (name,)


def test_claims_are_named_below_an_answer_and_stand_alone_where_there_is_none():
    assert "D5 ◐ true under a condition" in run.invoke(app, ["ask", "why divide by sqrt(d)"]).output
    listed = run.invoke(app, ["ask", "variance of the scores", "--list", "9"]).output
    assert re.search("D5 .* normalises the variance", listed)


def test_answers_are_content_of_the_package():
    assert {file.suffix for file in Path(FOLDER).iterdir()} == {".md"}
