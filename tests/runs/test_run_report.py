"""The report of a run is one whole page; what a task does not have is left out."""

import json
import random
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data import CharTokenizer, GeneratedBatches
from regard.tasks import Task, task
from regard.tasks.registry import TASKS
from regard.train.metrics import Tally, bootstrap_intervals

VOID = {"meta", "img", "br", "path", "rect", "circle"}


class Page(HTMLParser):
    """An offline page: nothing comes from elsewhere; what its view draws, and the plain headings.

    `headings` are those without JavaScript, which have to be those of the view.
    """

    def __init__(self, text):
        super().__init__()
        self.open, self.plain, self.saved, self.text = [], [], "", text
        self.feed(text)
        assert not self.open
        (held,) = json.loads(self.saved)["responses"]
        self.sections = {x["name"]: x["blocks"] for x in held["response"]["sections"]}
        self.headings = [*self.sections]
        assert self.headings == self.plain
        assert "default-src 'none'" in text

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert values.get("src", "data:").startswith("data:")
        assert "href" not in values
        if tag == "img":
            assert values["alt"]
        if tag not in VOID:
            self.open.append((tag, values.get("id")))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "h2":
            self.plain.append(data)
        if self.open and self.open[-1] == ("script", "saved"):
            self.saved += data


MODEL = """
[model]
type = "classifier"
layers = 1
dim = 16
heads = 2
pooling = "mean"

[train]
steps = 4
evaluate_every = 2
log_every = 1
warmup = 1
device = "cpu"
monitor = "accuracy"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of labelled texts, trained by the command line."""
    folder, rng = tmp_path_factory.mktemp("report"), random.Random(0)
    rows = ["text,label"]
    for n in range(300):
        label = rng.choice(["good & <b>", "bad"])
        rows.append(f"order {n} is {label[:4]},{label}")
    (folder / "data.csv").write_text("\n".join(rows))
    (folder / "task.toml").write_text(
        'task = "labels"\n[data]\ntrain = "data.csv"\nvocab_size = 280\n' + MODEL
    )
    words = ["train", str(folder / "task.toml"), "--out", str(folder / "run")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "report.html is the report" in done.output
    return folder / "run"


def test_a_training_writes_a_whole_page_and_a_card(run):
    page = Page((run / "report.html").read_text())
    assert page.headings == [
        "Scores", "Curves", "Mistakes", "Samples", "Confusions", "Attention", "Cost", "Data",
        "Limits", "Use", "Settings",
    ]  # fmt: skip
    result = json.loads((run / "result.json").read_text())
    assert f"<td>{result['test']['accuracy']:.4g}</td>" in page.text
    (tiles,) = (x["items"] for x in page.sections["Scores"] if x["kind"] == "tiles")
    assert tiles[0][:2] == ["accuracy", f"{result['test']['accuracy']:.4g}"]
    assert "good &amp; &lt;b&gt;" in page.text  # without JavaScript
    assert page.sections["Confusions"][0]["names"] == ["bad", "good & <b>"]
    assert "<b>is" not in page.text
    loss = next(x for x in page.sections["Curves"] if x.get("title") == "loss")
    assert [x["name"] for x in loss["series"]] == ["train", "valid"]
    (weights, *_) = (x["values"] for x in page.sections["Attention"] if x["kind"] == "map")
    assert sum(weights[0]) == pytest.approx(1, abs=1e-3)
    card = (run / "CARD.md").read_text()
    assert f"| accuracy | {result['test']['accuracy']:.4g} | " in card
    assert "pipeline_tag: text-classification" in card
    assert "Every input is given one of 2 classes" in card


def test_confusions_and_mistakes_are_those_of_the_evaluation(run):
    loaded = rg.load(run, device="cpu")
    facts = rg.runs.collect_facts(loaded)
    names, counts = facts.confusion()
    assert names == ["bad", "good & <b>"]
    assert sum(map(sum, counts)) == len(facts.answers)
    right = sum(counts[n][n] for n in range(2)) / len(facts.answers)
    assert right == pytest.approx(facts.evaluation.scores["accuracy"])
    assert len(facts.mistakes) == len(facts.answers) - counts[0][0] - counts[1][1]
    confidences = [answer.confidence for answer in facts.mistakes]
    assert confidences == sorted(confidences, reverse=True)
    low, high = facts.evaluation.intervals["accuracy"]
    assert low < right < high


def test_a_run_whose_data_is_gone_still_has_a_report(run, tmp_path):
    data = run.parent / "data.csv"
    kept = data.read_bytes()
    data.unlink()
    try:
        done = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / "r.html")])
    finally:
        data.write_bytes(kept)
    assert done.exit_code == 0, done.output
    page = Page((tmp_path / "r.html").read_text())
    assert {"Scores", "Curves", "Cost", "Settings"} <= set(page.headings)
    assert not {"Mistakes", "Data", "Attention"} & set(page.headings)
    assert "Not evaluated again:" in page.text
    assert not (tmp_path / "CARD.md").exists()


@dataclass(frozen=True, kw_only=True)
class Echo(Task):
    objective: ClassVar[str] = "next_token"
    verb: ClassVar[str] = "echo"

    def tokenizer(self, seed):
        return CharTokenizer(["a", "b"])

    def resolve(self, model, tokenizer):
        return replace(model, vocab=tokenizer.vocab)

    def batches(self, tokenizer, train, **shard):
        return GeneratedBatches(lambda n: {"tokens": torch.full((2, 6), 4 + n % 2)}, **shard)

    def evaluator(self, tokenizer, split):
        return lambda model: {"loss": 1.0, "kind": "none"}

    def apply(self, run, inputs, options):
        return list(inputs)


def test_a_task_of_ones_own_has_fewer_sections(tmp_path):
    task("echo")(Echo)
    try:
        recipe = rg.tasks.Recipe(
            name="echo", data=Echo(), model=rg.models.language_tiny(vocab=1, dim=16, heads=2),
            train=rg.train.TrainConfig(steps=3, log_every=1, warmup=1, device="cpu"),
        )  # fmt: skip
        rg.runs.fit(recipe, tmp_path / "run")
        page = Page((tmp_path / "run" / "report.html").read_text())
    finally:
        TASKS.pop("echo")
    assert page.headings == ["Scores", "Curves", "Cost", "Limits", "Use", "Settings"]
    assert "regard echo" in page.text


def test_an_interval_of_a_mean_is_that_of_the_normal_distribution():
    correct = (torch.rand(400, 1, generator=torch.Generator().manual_seed(0)) < 0.8).float()
    mean = float(correct.mean())
    low, high = bootstrap_intervals(Tally(correct, lambda x: {"exact": x[0] / 400}))["exact"]
    width = 1.96 * (mean * (1 - mean) / 400) ** 0.5
    assert (low, high) == pytest.approx((mean - width, mean + width), abs=0.006)
    perfect = Tally(torch.ones(300, 1), lambda x: {"exact": x[0] / 300})
    assert bootstrap_intervals(perfect)["exact"] == (0.99, 1.0)
    assert bootstrap_intervals(Tally(torch.ones(1, 1), lambda x: {"exact": x[0]})) == {}
