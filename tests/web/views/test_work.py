"""The work view: solutions are those of the library, mistakes are named at their field."""

import json
import tomllib
from xml.etree import ElementTree

import pytest

from regard import work
from regard.errors import ConfigError, RegardError, WorkError
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query
from regard.web.explorer.views.work import MAX_SIDE
from regard.web.jobs import Cancelled, Job
from regard.work.exact import format_decimal, parse_expression


@pytest.fixture(scope="module")
def explorer():
    return Explorer(Catalog())


def given(**tables):
    return json.dumps(tables)


def test_steps_are_those_of_the_library(explorer):
    answer = explorer.answer("work", {})
    solution = work.solve(work.read_problem("three-tokens"))
    assert [step["name"] for step in answer["steps"]] == [step.name for step in solution.steps]
    for step, expected in zip(answer["steps"], solution.steps, strict=True):
        rows = [[format_decimal(x) for x in row] for row in expected.value.tolist()]
        assert step["rounded"] == rows
        assert step["formula"] == expected.formula
    assert answer["remarks"] == list(solution.remarks)


def test_formulas_are_mathml_that_an_xml_parser_reads(explorer):
    for step in explorer.answer("work", {"problem": "lstm"})["steps"]:
        for text in (step["formula_mathml"], *step["results"]):
            assert ElementTree.fromstring(text).tag == "math"


# numbers, rows, columns, lists, options that are lists, symbols with values
SHAPES = "cost-layers dot-product-moments gates identity permutation position-resize positions"
SHAPES += " sharpness symbols two-heads"


@pytest.mark.parametrize("problem", SHAPES.split())
def test_a_form_that_was_not_changed_gives_the_same_problem(explorer, problem):
    answer = explorer.answer("work", {"problem": problem})
    same = {"given": json.dumps(answer["given"]), "options": json.dumps(answer["options"])}
    again = explorer.answer("work", {"problem": problem, **same})
    assert [step["rounded"] for step in again["steps"]] == [s["rounded"] for s in answer["steps"]]


def test_changed_numbers_are_solved_exactly(explorer):
    body = {"problem": "self-attention", "given": given(X=[["1/3", "√2"], ["0", "sqrt(2)/2"]])}
    answer = explorer.answer("work", body | {"options": given(scale="1")})
    problem = {"scale": 1, "given": {"X": [["1/3", "sqrt(2)"], [0, "sqrt(2)/2"]]}}
    values = work.solve(problem)
    [scores] = [step for step in answer["steps"] if step["name"] == "S"]
    assert scores["exact"] == [[str(x) for x in row] for row in values["S"].tolist()]
    assert scores["exact"][0] == ["19/9", "1"]


def test_a_root_may_be_written_as_a_sign():
    assert parse_expression("√2/√(4+4)") == parse_expression("1/2")
    assert parse_expression("3√x".replace("3", "3*"), ["x"]) == parse_expression("3*sqrt(x)", ["x"])
    with pytest.raises(WorkError, match="sqrt of 0 or more"):
        parse_expression("√(-1)")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"given": given(X=[["1", "abc"]])}, r"X \(1,2\): needs one such as 3, 0.25"),
        ({"given": given(X=[["1"], [" "]])}, r"X \(2,1\): needs a number, got nothing; try 0"),
        ({"given": given(X=[["1/0"]])}, r"X \(1,1\): needs no division by 0"),
        ({"given": given(X=[["2**99"]])}, r"X \(1,1\): needs powers"),
        ({"given": given(X=[["0"] * 17])}, f"X: needs 1 to {MAX_SIDE} .* got 1 × 17"),
        ({"given": given(X=[])}, "X: needs 1 to 16 rows and columns"),
        ({"given": given(X=[["1", "2"], ["3"]])}, "X: needs rows of one length, got 2 and 1"),
        ({"given": given(Y=[["1"]])}, "given: needs X, or Q, K and V, got Y"),
        ({"given": given(X=[["1"]], W_Q=[["1"], ["2"]])}, "Q: needs"),
        ({"given": "{"}, "given: needs JSON"),
        ({"given": "[1]"}, "given: needs an object"),
        ({"given": given(X={"a": "1"})}, "given: needs rows of texts"),
        ({"options": given(mask="casual")}, "mask: needs none, causal"),
        ({"options": given(given="1")}, "options: need names of options, got 'given'"),
        ({"problem": "three-token"}, "problem: needs a name of the list.*try three-tokens"),
        ({"problem": "/etc/passwd"}, "problem: needs a name of the list"),
        ({"family": "rnnn"}, "family: needs one of .*try rnn"),
        ({"family": "rnn", "level": 4}, "level: needs to be valid: input should be less than"),
        ({"given": "x" * 50_000}, "given: needs to be valid: string should have at most"),
    ],
)
def test_mistakes_are_named_at_their_field(explorer, body, text):
    with pytest.raises(RegardError, match=text):
        explorer.answer("work", {"problem": "self-attention"} | body)


def test_too_many_numbers_are_refused(explorer):
    tables = {f"W_{n}": [["1"] * 16] * 16 for n in range(3)}
    with pytest.raises(WorkError, match="given: needs at most 600 numbers in all, got 768"):
        explorer.answer("work", {"given": json.dumps(tables)})


def test_answers_are_marked_with_their_likely_mistake(explorer):
    body = {"problem": "self-attention", "given": given(X=[["1", "0"], ["1", "1"], ["0", "2"]])}
    body["options"] = given(scale="1")
    solution = work.solve({"scale": 1, "given": {"X": [[1, 0], [1, 1], [0, 2]]}})
    answers = {
        "S": [["1", "1", "0"], ["1", "2", "2"], ["0", "2", "4"]],
        "N": [["6.44"], ["?"], [""]],
    }
    marked = explorer.answer("work.check", body | {"answers": json.dumps(answers)})
    direct = work.check_answers(solution, answers)
    found = [(x["name"], x["verdict"], x["diagnosis"]) for x in marked["findings"]]
    assert found == [(x.name, x.verdict, x.diagnosis) for x in direct]
    assert [x[1] for x in found] == ["right", "right"]
    assert marked["findings"][1]["blanks"] == ["(2,1)", "(3,1)"]
    wrong = {"S": [["1", "1", "0"], ["1", "2", "2"], ["0", "2", "5"]]}
    marked = explorer.answer("work.check", body | {"answers": json.dumps(wrong)})
    assert marked["is_wrong"]
    assert "(3,3): 5 should be 4" in marked["findings"][0]["differences"]


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"S": [["1", "x"]]}, "needs 3 rows of 3 numbers, got 1 of 2"),
        ({"S": [["1", "?", "x"], ["?"] * 3, ["?"] * 3]}, "(1,3): needs one such as 3"),
    ],
)
def test_answers_that_cannot_be_read_are_named(explorer, answers, text):
    marked = explorer.answer("work.check", {"answers": json.dumps(answers)})
    assert text in marked["findings"][0]["unread"][0]


def test_an_answer_to_no_step_is_refused(explorer):
    with pytest.raises(WorkError, match="answers: need names of steps"):
        explorer.answer("work.check", {"answers": json.dumps({"T": [["1"]]})})


def test_an_exercise_of_a_family_is_the_generated_one(explorer):
    answer = explorer.answer("work", {"family": "rnn", "seed": 3, "level": 2})
    made = work.make_exercise("rnn", seed=3, level=2)
    assert answer["questions"] == list(made.questions)
    assert answer["name"] == made.name
    assert [s["name"] for s in answer["steps"]] == [s.name for s in made.solution.steps]


@pytest.mark.parametrize("problem", ["three-tokens", "symbols", "permutation"])
def test_the_toml_is_the_problem(explorer, problem):
    text = explorer.answer("work.text", {"problem": problem, "format": "toml"})["text"]
    assert tomllib.loads(text) == work.read_problem(problem)


def test_solutions_are_written_in_other_formats(explorer):
    solution = work.solve(work.read_problem("rnn"))
    for form in ("latex", "markdown", "text"):
        text = explorer.answer("work.text", {"problem": "rnn", "format": form})["text"]
        assert text == work.format_solution(solution, form)


def test_a_long_solution_stops_when_nobody_waits(explorer):
    class Leaving(Job):
        checks = 0

        def check(self):
            self.checks += 1
            if self.checks == 30:
                self.cancel()
            super().check()

    job = Leaving()
    with pytest.raises(Cancelled):
        explorer.answer("work", {"problem": "bptt-lstm"}, job)
    assert job.progress[1] == "solving"  # not only between the steps that are written
    assert job.checks < 40


def test_a_long_solution_stops_after_its_time(explorer, monkeypatch):
    monkeypatch.setattr("regard.web.explorer.views.work.MAX_SECONDS", 0.0)
    with pytest.raises(WorkError, match="given: needs numbers that are solved exactly in 0 s"):
        explorer.answer("work", {"problem": "bptt-rnn"})


def test_the_table_has_one_row_per_entry(explorer):
    rows = explorer.csv(find_query("work"), {}, Job()).splitlines()
    solution = work.solve(work.read_problem("three-tokens"))
    assert len(rows) == 1 + sum(len(step.value) for step in solution.steps)
    assert rows[1] == "Q,1,1,1,1"


def test_unknown_fields_are_refused(explorer):
    with pytest.raises(ConfigError, match="matrix: needs to be valid: extra inputs"):
        explorer.answer("work", {"matrix": "X"})
