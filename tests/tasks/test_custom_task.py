"""A custom task, written as docs/train/own-task.md says, gets every surface; so has each verb."""

import inspect
from typing import get_args

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.text.words import WordSplit
from regard.errors import ConfigError
from regard.tasks.annotated_verb import TagOptions
from regard.tasks.registry import TASKS
from regard.tasks.verb import Prompt, library_verbs, options_of
from regard.web.api import create_app
from regard.web.explorer import Explorer
from regard.web.explorer.catalog import Catalog

TASK = '''
from dataclasses import dataclass, replace
from typing import Literal

import torch

from regard.data import CharTokenizer, GeneratedBatches
from regard.errors import ConfigError
from regard.tasks import Task, TaskOptions, Text, option, task


@task("shouting")
@dataclass(frozen=True, kw_only=True)
class Shouting(Task):
    """Texts in capitals."""

    objective = "next_token"
    verb, reads = "shout", Text(example="abc")

    class Options(TaskOptions):
        """Write texts in capitals."""

        times: int = option(default=1, ge=1, le=9, help="Repetitions.")
        end: Literal["!", "?"] = option(default="!", help="Last sign.")

    def tokenizer(self, seed):
        return CharTokenizer(["a", "b"])

    def resolve(self, model, tokenizer):
        return replace(model, vocab=tokenizer.vocab)

    def batches(self, tokenizer, train, **shard):
        return GeneratedBatches(lambda n: {"tokens": torch.full((2, 6), 4 + n % 2)}, **shard)

    def evaluator(self, tokenizer, split):
        return Evaluator()

    def apply(self, run, inputs, options):
        bad = ConfigError("text: needs to be good, got bad")
        return [
            bad if x == "bad" else x.upper() * options.times + options.end for x in inputs
        ]

    def is_correct(self, answer, reference):
        return answer.lower() == reference.lower()


class Evaluator:
    sources, references = ["a", "b"], ["A", "b"]

    def predict(self, model):
        return ["a", "c"]

    def score(self, model, answers):
        return {"loss": 1.0}

    def __call__(self, model):
        return self.score(model, self.predict(model))
'''
RECIPE = """
task = "shouting"
[model]
type = "language"
layers = 1
dim = 16
heads = 2
[train]
steps = 2
warmup = 1
device = "cpu"
"""


def regard(*words, code=0):
    result = CliRunner().invoke(app, [str(x) for x in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("custom")
    (place / "shouting.py").write_text(TASK)
    (place / "shout.toml").write_text(RECIPE)
    out = place / "run"
    regard("--import", place / "shouting.py", "train", place / "shout.toml", "--out", out)
    yield out
    TASKS.pop("shouting")


def test_it_has_a_command_with_its_options(folder):
    assert regard("shout", folder, "abc", "--times", "2").stdout == "ABCABC!\n"
    assert regard("apply", folder, "abc", "-o", "end=?").stdout == "ABC?\n"
    text = regard("shout", "--help").stdout
    assert "Write texts in capitals." in text
    assert "Repetitions." in text
    error = regard("shout", folder, "abc", "--times", "0", code=2).stderr
    assert error == "regard: times: needs 1 to 9, got 0\n"
    error = regard("shout", folder, "abc", "-o", "tims=3", code=2).stderr
    assert "option: needs one of the task shout, got 'tims'; try times" in error
    assert "run: needs a model that can shout" in regard("shout", "morse", "x", code=2).stderr


def test_it_answers_files_line_by_line(folder, tmp_path):
    (tmp_path / "a.tsv").write_text("one\tnote\nbad\t\n")
    done = regard("shout", folder, tmp_path / "a.tsv", "--out", tmp_path / "b.tsv", code=1)
    assert (tmp_path / "b.tsv").read_text() == "one\tnote\tONE!\nbad\t\t\n"
    assert "line 2: text: needs to be good, got bad" in done.stderr


def test_it_is_a_method_of_its_runs(folder):
    run = rg.load(folder, device="cpu")
    assert run.verbs[0] == "shout"
    assert run.shout(["a", "b"], times=2) == run.apply(["a", "b"], times=2) == ["AA!", "BB!"]
    assert run.pipeline(end="?")(["a"]) == ["A?"]
    with pytest.raises(ConfigError, match="text: needs to be good, got bad"):
        run.shout(["a", "bad"])
    with pytest.raises(ConfigError, match="end: needs one of !, [?], got '.'"):
        run.shout(["a"], end=".")


def test_it_has_a_route_with_a_schema_and_the_facts_of_a_form(folder):
    run = rg.load(folder, device="cpu")
    with TestClient(create_app({"mine": run}), base_url="http://127.0.0.1") as client:
        body = {"inputs": ["a"], "times": 2}
        assert client.post("/shout", json=body).json() == {"model": "mine", "outputs": ["AA!"]}
        assert client.post("/apply", json=body).status_code == 200
        for wrong, message in (
            ({"times": 0}, "times: needs 1 to 9, got 0"),
            ({"times": 10}, "times: needs 1 to 9, got 10"),
            ({"end": "."}, "end"),
        ):
            answer = client.post("/shout", json={"inputs": ["a"]} | wrong)
            assert (answer.status_code, message in answer.json()["error"]) == (422, True)
        assert client.post("/shout", json={"inputs": ["bad"]}).status_code == 400
        route = client.get("/openapi.json").json()["paths"]["/shout"]["post"]
        assert route["description"] == "Write texts in capitals."
        (content,) = route["requestBody"]["content"].values()
        times = content["schema"]["properties"]["times"]
        assert (times["minimum"], times["maximum"], times["default"]) == (1, 9, 1)
        options = client.get("/models").json()["mine"]["options"]
        assert [x["name"] for x in options] == ["times", "end"]
        assert options[1]["choices"] == ["!", "?"]


def test_evaluation_and_report_count_what_it_calls_correct(folder):
    run = rg.load(folder, device="cpu")
    result = run.evaluate("test")
    assert [x.is_correct for x in result.answers] == [True, False]
    page = (folder / "report.html").read_text()
    assert "regard shout" in page
    assert "1 of 2" in page


def test_the_page_shows_what_it_returns(folder):
    explorer = Explorer(Catalog([folder]))
    (model,) = explorer.answer("models", {})["models"]
    assert [x["name"] for x in model["options"]] == ["times", "end"]
    assert model["examples"] == ["abc"]  # that of the task
    request = {"model": "run", "text": "ab"}
    assert explorer.answer("text", request)["applied"] == "AB!"
    request["options"] = "times=2&end=?"
    assert explorer.answer("text", request)["applied"] == "ABAB?"


@pytest.mark.parametrize("verb", library_verbs(), ids=lambda x: x.verb)
def test_each_verb_of_the_library_is_a_command_a_method_and_a_route(verb):
    task = next(x for x in TASKS.values() if x.verb == verb.verb)
    assert task.pipeline_type.__call__ is not task.apply
    method = inspect.signature(getattr(rg.Run, verb.verb))
    names = {x.name for x in options_of(verb.Options)}
    keywords = {x.name for x in method.parameters.values() if x.kind is x.KEYWORD_ONLY}
    # sampling holds the other options of generate
    assert keywords - names <= {"device", "sampling"}
    assert len(inspect.getdoc(getattr(rg.Run, verb.verb)) or "") > 20
    text = regard(verb.verb, "--help").stdout
    for option in options_of(verb.Options):
        assert option.help.split()[0] in text
    assert isinstance(verb.reads, Prompt) <= verb.can_stream


def test_the_splits_of_words_are_those_of_the_data():
    (option,) = options_of(TagOptions)
    assert option.choices == get_args(WordSplit)


def test_the_former_form_of_apply_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"apply: needs \(self, run, inputs, options\), got"):

        class Old(TASKS["text"]):
            def apply(self, run, inputs):
                return inputs
