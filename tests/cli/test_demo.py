"""The demo trains, evaluates, translates, inspects and writes a page with true numbers."""

import json
import re
import signal

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.runs import load_run
from regard.tasks import SearchConfig, translate_texts
from regard.train.updates import Updater

SMALL = [
    *(
        "languages=en,de,fr",
        "kinds=duration",
        "vocab_texts=300",
        "valid_size=4",
        "test_size=6",
        "max_new_tokens=8",
    ),
    *("device=cpu", "dim=16", "heads=2", "layers=1", "decoder_layers=1", "ffn_dim=16"),
    *("steps=6", "batch_tokens=256", "save_every=2", "evaluate_every=6", "log_every=1", "warmup=2"),
]
GIVEN = [part for setting in SMALL for part in ("--set", setting)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """A place with two demos, and what the first one said."""
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("COLUMNS", "120")
        done = demo(*GIVEN)
        assert done.exit_code == 0, done.output
        assert demo(*GIVEN).exit_code == 0
    return place, done.output


def demo(*more: str):
    return CliRunner().invoke(app, ["demo", *more])


def test_the_demo_prints_the_scores_and_translations_of_the_run(twice):
    here, shown = twice
    run = load_run(here / "runs/demo")
    scores = run.result["test"]
    assert f"{100 * scores['exact']:.1f}% exact match" in shown
    assert scores["signature"] in shown.replace("\n", "")
    pair = next(run.recipe.data.source(1).examples("test", 0))
    search = SearchConfig(max_new_tokens=8)
    (answer,) = translate_texts(run.model, run.tokenizer, [pair.source], [pair.language], search)
    line = next(x for x in shown.splitlines() if x.startswith(f"{pair.language}  "))
    assert pair.source in line
    assert answer.strip() in line
    assert ("✓" if answer == pair.target else "✗") in line
    assert f"reference: {pair.target}" in shown or answer == pair.target


def test_the_demo_lists_every_head_and_the_source_of_every_word(twice):
    inside = twice[1].partition("Attention heads while it writes")[2]
    for site in ("encoder.0.self", "decoder.0.self", "decoder.0.cross"):
        assert f"\n{site} " in inside
    looks = re.findall(r"^“.*” attends to “.*” with (\d\.\d\d)$", inside, re.MULTILINE)
    assert looks


def test_report_and_heads_are_self_contained_pages(twice):
    report, heads = ((twice[0] / f"runs/demo/{x}.html").read_text() for x in ("report", "heads"))
    assert not re.search(r"(src|href)=.?https?:", report + heads)
    assert "The first test examples, not selected" in report
    assert "decoder.0.cross" in heads


def test_a_second_demo_leaves_the_first_alone(twice):
    assert sorted(path.name for path in (twice[0] / "runs").iterdir()) == ["demo", "demo-2"]


def test_ctrl_c_saves_and_the_printed_command_continues(here, monkeypatch):
    real = Updater.step

    def stop(updater, objective, step, lr):
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return real(updater, objective, step, lr)

    with monkeypatch.context() as patched:
        patched.setattr(Updater, "step", stop)
        done = demo(*GIVEN)
    assert done.exit_code == 130
    assert "runs/demo: saved at step 4; regard demo --out runs/demo continues" in done.output
    done = demo("--out", "runs/demo")
    assert done.exit_code == 0, done.output
    assert json.loads((here / "runs/demo/result.json").read_text())["step"] == 6
    assert "is the report" in done.output
    again = demo("--out", "runs/demo", "--set", "steps=9")
    assert again.exit_code == 2
    assert "set: needs a new run, got runs/demo" in again.stderr
