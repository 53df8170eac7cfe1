"""The recipe files of `regard new`; `test_own_data.py` trains and serves what they describe."""

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


def regard(*args: str, code: int | None = 0):
    done = CliRunner().invoke(app, [*args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert code is None or done.exit_code == code, done.output
    return done


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pairs():
    """Pairs with copies, an empty side and an odd line, in UTF-16."""
    rng, rows = random.Random(0), []
    for _ in range(300):
        drawn = rng.choices(list(WORDS), k=4)
        rows.append((" ".join(drawn), " ".join(WORDS[word] for word in drawn)))
    lines = [f"{a}\t{b}\n" for a, b in [*rows, *rows[:3]]] + ["nothing\t\n", "alone\n"]
    Path("en-de.tsv").write_text("".join(lines), encoding="utf-16")
    return "en-de.tsv"


def test_the_recipe_of_a_run_from_python_is_written_too(tmp_path):
    from regard.runs import fit, override_settings
    from regard.tasks import recipe
    from regard.tasks.recipe_file import read_recipe_file

    small = ["steps=2", "vocab_texts=99", "valid_size=2", "test_size=2", "dim=16", "device=cpu"]
    changed = override_settings(recipe("phrases"), small)
    fit(changed, tmp_path / "run")
    assert read_recipe_file(tmp_path / "run" / "recipe.toml") == changed


# errors: one line, nothing lost


def error(*args: str) -> str:
    done = regard(*args, code=2)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_an_existing_recipe_is_kept_unless_forced(pairs):
    Path("task.toml").write_text("mine")
    assert error("new", "pairs", pairs) == (
        "regard: task.toml: needs to be a new file, got one that exists; try --force\n"
    )
    assert Path("task.toml").read_text() == "mine"
    regard("new", "pairs", pairs, "--force")
    assert Path("task.toml").read_text() != "mine"


def test_errors_are_one_line_and_write_nothing(pairs):
    Path("empty.txt").touch()
    assert error("new", "pair", pairs).endswith("got 'pair'; try pairs\n")
    assert error("new", "text", "empty.txt").startswith(
        "regard: empty.txt: needs text to train on, got an empty file ("
    )
    assert "nowhere: needs to be a file or a folder" in error("new", "text", "nowhere")
    assert not Path("task.toml").exists()
    assert "No space left on device" in error("new", "pairs", pairs, "-o", "/dev/full", "--force")


def test_a_recipe_with_unknown_keys_names_the_nearest(pairs):
    regard("new", "pairs", pairs)
    text = Path("task.toml").read_text()
    Path("task.toml").write_text(text.replace("\nvocab_size", "\nvocab_sise", 1))
    message = "data.vocab_sise: needs the name of a setting, got 'vocab_sise'; try vocab_size"
    assert message in error("data", "task.toml")
    assert message in error("train", "task.toml")
    assert not Path("runs").exists()


def test_a_recipe_without_files_of_its_own_says_so():
    assert "needs one with data files of its own, got morse" in error("data", "morse")
