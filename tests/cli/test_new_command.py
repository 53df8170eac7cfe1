"""`regard new`, `regard data`, `regard train` on foreign data, and the runs that come of it."""

import random
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from typer.testing import CliRunner

from regard.cli import app

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


def regard(*args: str, code: int | None = 0):
    done = CliRunner().invoke(app, [*args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert code is None or done.exit_code == code, done.output
    return done


def train(file: str, *settings: str) -> str:
    """The folder of a run of two steps."""
    more = [x for setting in ("device=cpu", "steps=2", *settings) for x in ("--set", setting)]
    regard("train", file, *more)
    (folder,) = Path("runs").iterdir()
    assert (folder / "recipe.toml").read_bytes() == Path(file).read_bytes()
    return str(folder)


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


def test_pairs_become_a_translator(pairs):
    done = regard("new", "pairs", pairs)
    assert done.stdout.splitlines() == [
        "task.toml: written; next:", "  regard data task.toml", "  regard train task.toml",
    ]  # fmt: skip
    assert "1 × an empty side: en-de.tsv:304" in done.stderr
    shown = regard("data", "task.toml").stdout
    assert "UTF-16" in shown
    assert "1 × 1 column: en-de.tsv:305" in shown
    assert shown.count("- source: ") == 3
    assert "in tokens: median" in shown
    assert "warning: copies among the train examples: " in shown
    run = train("task.toml")
    regard("translate", run, "one two", "--to", "de", code=None)
    assert regard("apply", run, "one two", "-o", "max_new_tokens=3", code=None).exit_code == 0


def test_a_folder_of_texts_becomes_a_language_model():
    Path("texts").mkdir()
    for n in range(90):
        Path(f"texts/{n}.txt").write_text(f"chapter {n}: " + "all work and no play " * (5 + n % 7))
    regard("new", "text", "texts", "-o", "work.toml")
    assert 'split_by = "files"  # 5% of 90 files' in Path("work.toml").read_text()
    assert "examples of train:\n- text: chapter" in regard("data", "work.toml").stdout
    run = train("work.toml")
    assert Path(run).name == "work"
    assert regard("generate", run, "all work").stdout.startswith("all work")


def test_recordings_become_a_recogniser():
    rng = np.random.default_rng(0)
    Path("cv/clips").mkdir(parents=True)
    lines = ["path\tsentence\n"]
    for n in range(120):
        rate = (8000, 8000, 16000)[n % 3]
        soundfile.write(f"cv/clips/{n}.wav", rng.normal(size=rate) * 0.1, rate)
        lines.append(f"{n}.wav\tabc\n")
    Path("cv/train.tsv").write_text("".join([*lines, "gone.wav\tabc\n"]))
    regard("new", "speech", "cv")
    shown = regard("data", "task.toml").stdout
    assert "rate: 8000 80, 16000 40" in shown
    assert "1 × no such file: train.tsv:122" in shown
    run = train("task.toml", "batch_size=4")
    regard("transcribe", run, "cv/clips/0.wav", "cv/clips/2.wav", code=None)


def test_images_become_a_classifier():
    rng = np.random.default_rng(0)
    for n in range(80):
        folder = Path("photos") / ("dark", "light")[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 128, (16, 16, 3)) + 127 * (n % 2)
        Image.fromarray(pixels.astype("uint8")).save(folder / f"{n}.png")
    regard("new", "images", "photos")
    assert "label: dark 40, light 40" in regard("data", "task.toml").stdout
    run = train("task.toml", "batch_size=8")
    assert "light" in regard("classify", run, "photos/light/1.png", code=None).stdout


def test_labelled_texts_and_tagged_words_become_models():
    rows = "".join(f'"film {n}, {("good", "bad")[n % 2]}",{n % 2}\n' for n in range(200))
    Path("reviews.csv").write_text(f"text,label\n{rows}")
    regard("new", "labels", "reviews.csv", "-o", "reviews.toml")
    assert "label: 0 100, 1 100" in regard("data", "reviews.toml").stdout
    regard("label", train("reviews.toml"), "film 7, good")
    words = "".join(f"Ada{n} B-PER\nsleeps O\n\n" for n in range(200))
    Path("names.conll").write_text(words)
    regard("new", "tags", "names.conll", "-o", "names.toml")
    assert "tags: B-PER 200, O 200" in regard("data", "names.toml").stdout
    regard("train", "names.toml", "--set", "steps=2", "--set", "device=cpu", "--out", "names")
    regard("tag", "names", "Ada sleeps")


def test_the_recipe_of_a_run_from_python_is_written_too(tmp_path):
    from regard.runs import override_settings, start_run
    from regard.tasks import recipe
    from regard.tasks.recipe_file import read_recipe_file

    small = ["steps=2", "vocab_texts=99", "valid_size=2", "test_size=2", "dim=16", "device=cpu"]
    changed = override_settings(recipe("phrases"), small)
    start_run(changed, tmp_path / "run")
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
