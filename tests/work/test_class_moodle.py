"""The quiz of a class: read as Moodle reads Cloze, answered, and its responses marked again."""

import csv
import re
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pytest
from class_papers import solve  # tests/work
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.work.classroom import Class, Student, make_class, write_class
from regard.work.classroom.moodle import cloze_field, field_weights, mistakes_in_step

run = CliRunner()
GRADES = (
    "100",
    "90",
    "80",
    "75",
    "70",
    "60",
    "50",
    "40",
    "30",
    "25",
    "20",
    "10",
    "5",
    "0",
)  # shares


def read_fields(text: str) -> list[tuple[int, list[tuple[float, float, float, str]]]]:
    """Weight of each Cloze field, and of its alternatives: share, value, tolerance, feedback.

    By the grammar of Moodle's multianswer type, {weight:KIND:alternative~alternative}, scanned
    character by character: an alternative is = or %share%, an answer that ends at a # unless & or a
    backslash is before it, and feedback; ~ and } end it unless a backslash is before them.
    """
    fields = []
    for start in (m.end() for m in re.finditer(r"\{\d*:(?:NUMERICAL|SHORTANSWER):", text)):
        weight, kind = text[text.rindex("{", 0, start) + 1 : start - 1].split(":")
        parts, at = [""], start
        while text[at] != "}":
            if text[at] == "\\":
                parts[-1] += text[at + 1]
                at += 1
            elif text[at] == "~":
                parts.append("")
            else:
                parts[-1] += text[at]
            at += 1
        fields.append((int(weight or 1), [read_alternative(part, kind) for part in parts]))
    return fields


def read_alternative(part: str, kind: str) -> tuple[float, float, float, str]:
    answer, mark, feedback = part.partition("#")
    assert not (mark and answer.endswith("&")), part  # an entity would not end the answer
    share, answer = (1.0, answer[1:]) if answer[0] == "=" else (None, answer)
    if share is None:
        blank, percent, answer = answer.split("%")
        assert blank == "", part
        share = int(percent) / 100
        assert percent in GRADES, part
    if kind == "SHORTANSWER":
        assert not set(answer) & set("*:"), part  # a wildcard
        return (
            share,
            float(answer.replace("−", "-").replace("∞", "inf").replace("oo", "inf")),
            0,
            "",
        )
    value, near = answer.split(":")  # numbers as Moodle reads them: no inf, no nan, no blanks
    assert all(set(x) <= set("0123456789.-+e") for x in (value, near)), part
    return share, float(value), float(near), feedback


def grade(field, value: float) -> tuple[float, str]:
    """The first alternative within its tolerance, as Moodle grades."""
    return next(
        ((share, text) for share, right, near, text in field[1] if abs(value - right) <= near),
        (0.0, ""),
    )


@pytest.fixture(scope="module")
def quiz(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quiz")
    students = [Student(f"Student {n}", str(n)) for n in range(6)]
    one = make_class(folder, Class("attention", 2, {"A": 3, "H": 2}, secret="quiz"), students)
    write_class(one, folder, ["moodle"])
    xml = ElementTree.parse(folder / "quiz.xml").getroot()
    texts = [x.findtext("questiontext/text") or "" for x in xml if x.get("type") == "cloze"]
    return folder, one, xml, texts


def test_the_variants_are_in_one_category_without_names(quiz):
    _, one, xml, texts = quiz
    assert [x.get("type") for x in xml] == ["category", *["cloze"] * 6]
    assert xml[0].findtext("category/text") == "$course$/top/Exercise: attention"
    assert len({x.findtext("name/text") for x in xml[1:]}) == 6
    assert "Student" not in ElementTree.tostring(xml, encoding="unicode")


def test_right_answers_get_all_points_and_the_weights_are_the_points(quiz):
    _, one, _, texts = quiz
    for x, text in zip(one.assignments, texts, strict=True):
        fields, right = read_fields(text), solve(dict(x.exercise.problem))
        values = [v for step in x.steps for v in right[step.name].ravel()]
        assert len(fields) == len(values)
        for field, value in zip(fields, values, strict=True):
            assert grade(field, float(f"{value:.3g}"))[0] == 1
        total = {}
        for field, name in zip(fields, (s.name for s in x.steps for _ in s.value), strict=True):
            total[name] = total.get(name, 0) + field[0]
        assert {name: w / total["Q"] for name, w in total.items()} == x.points


def test_a_known_mistake_gets_half_and_says_what_it_was(quiz):
    _, one, _, texts = quiz
    said = 0
    for x, text in zip(one.assignments, texts, strict=True):
        fields = read_fields(text)
        wrong = solve(dict(x.exercise.problem), "W_K for W_Q")["Q"].ravel()
        right = solve(dict(x.exercise.problem))["Q"].ravel()
        for field, value, true in zip(fields, wrong, right, strict=False):
            share, feedback = grade(field, value)
            assert share == 1 if value == true else share in (0, 0.5)
            said += "W_K was used for W_Q" in feedback
    assert said >= 10


def test_alternatives_of_a_field_never_overlap(quiz):
    for text in quiz[3]:
        for _, found in read_fields(text):
            spans = sorted((value - near, value + near) for _, value, near, _ in found)
            assert all(a[1] < b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_feedback_with_signs_of_the_grammar_stays_feedback():
    step = work.solve({"given": {"X": [[1, 2]]}, "scale": 1}).steps[0]
    text = cloze_field(step, 0, 0, 2, [("a } and ~ and <b>", step.value + step.value)])
    ((weight, (right, wrong)),) = read_fields(text)
    assert (weight, right[1:3], wrong[:2]) == (2, (5.0, 0.001), (0.5, 10.0))
    assert wrong[3] == "likely: a ) and ∼ and &lt;b&gt;"


def test_the_responses_come_back_through_class_mark(quiz):
    folder, one, _, texts = quiz
    rng = np.random.default_rng(0)
    drawn = rng.permutation(6)  # who got which problem
    table = [["Last name", "First name", "ID number", "Completed", "Grade/10.00"]]
    table[0] += ["Question 1", "Response 1", "Question 2", "Response 2"]
    mistakes = ["", "W_K for W_Q", "K for V", "", "not normalised"]
    for n, mistake in enumerate(mistakes):
        x = one.assignments[drawn[n]]
        values = solve(dict(x.exercise.problem), mistake)
        flat = [f"{v:.4g}" for step in x.steps for v in values[step.name].ravel()]
        response = "; ".join(f"part {i}: {v}" for i, v in enumerate(flat, 1))
        question = " ".join(unescape(re.sub(r"<[^>]+>|\{[^}]*\}", " ", texts[drawn[n]])).split())
        table.append([str(n), "Student", str(n), "19 November 2026 3:45 PM", "-"])
        table[-1] += ["Which?", "True", question.upper(), response]
    table.append(["Guest", "A", "99", "", "-", "Which?", "", question, "Teil 1: 0,5; Teil 2: "])
    with (folder / "responses.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)
    done = run.invoke(app, ["class", "mark", str(folder / "responses.csv")])
    assert done.exit_code == 3, done.output
    text = (folder / "marks/marks.csv").read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(text.splitlines()))
    assert [float(row["points"]) for row in rows[:5]] == [9, 8, 7, 9, 6]
    assert [int(row["problem"]) for row in rows[:5]] == [n + 1 for n in drawn[:5]]
    assert rows[5]["name"] == "A Guest"
    assert "not in the roster" in rows[5]["notes"]
    assert rows[6]["notes"] == "nothing handed in"


def test_responses_without_the_question_say_what_to_export(quiz, tmp_path):
    folder, *_ = quiz
    (tmp_path / "r.csv").write_text("ID number,Response 1\n1,part 1: 0.5; part 2: 1\n")
    done = run.invoke(app, ["class", "mark", str(tmp_path / "r.csv"), "--class", str(folder)])
    assert done.exit_code == 3
    assert "with the question text displayed" in done.output


@pytest.mark.parametrize(("family", "level"), [("gru", 2), ("attention", 3), ("layer-norm", 2)])
def test_every_field_is_one_that_moodle_reads(family, level, tmp_path):
    options = {"mask": "causal"} if family == "attention" else {}
    wanted = Class(family, level, {"": 0.5}, options, secret="s")
    for x in make_class(tmp_path, wanted, [Student("a"), Student("b")]).assignments:
        weights = field_weights(x)
        for step in x.steps:
            wrong = mistakes_in_step(x.exercise.solution, step)
            for i in range(step.value.rows):
                for j in range(step.value.cols):
                    text = cloze_field(step, i, j, weights[step.name], wrong)
                    ((weight, found),) = read_fields(text)
                    assert weight >= 1
                    assert found[0][0] == 1
                    assert text.count("{") == text.count("}") == 1
