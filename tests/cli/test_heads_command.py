"""`regard heads`: scores and examples of the heads of a model on disk."""

import json

import pytest
import torch
from typer.testing import CliRunner

from regard import models
from regard.cli import app


def run(*args: object):
    return CliRunner().invoke(app, ["heads", *map(str, args)])


@pytest.fixture
def language(tmp_path):
    torch.manual_seed(0)
    return models.save(models.LanguageModel(models.language_tiny(vocab=20)), tmp_path / "run")


def test_scores_of_all_heads_are_printed_and_drawn(language, tmp_path):
    done = run(language, "--top", 1, "--out", tmp_path / "heads.png")
    assert done.exit_code == 0, done.output
    titles = [line for line in done.output.splitlines() if line.endswith(":")]
    assert titles == ["induction:", "previous:", "duplicate:", "retrieval:", "sink:"]
    assert (tmp_path / "heads.png").stat().st_size > 10_000
    rows = json.loads(run(language, "--json").output)
    assert len(rows) == 8
    assert all(0 <= row["induction"] <= 1 for row in rows)


def test_files_are_searched_for_examples(language, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("3 1 4 3 1 5")
    (texts / "b.txt").write_text("7 8 9 7 8")
    done = run(language, texts)
    assert done.exit_code == 0, done.output
    assert "8 heads on 11 tokens, largest mean induction first" in done.output
    assert "7 «8» 9 [7] 8" in done.output
    rows = json.loads(run(language, texts / "b.txt", "--by", "previous", "--json").output)
    assert {row["query"] - row["key"] for row in rows} == {1}


def test_wrong_calls_are_one_line(language, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for args, message in {
        (language, "--by", "inducton"): "by: needs a number of a head, got 'inducton'",
        (language, empty): "needs .txt files, got a folder without any",
        (language, tmp_path / "none.txt"): "none.txt",
        ("phrases",): "inputs: needs the token ids that Translator is called with",
        ("phrases", empty): "model: needs one stack",
    }.items():
        done = run(*args)
        assert done.exit_code == 2, done.output
        assert message in done.stderr.replace("\n", " "), message
