"""Data that changed since a run began is named, and a resume goes on only if that is accepted."""

import gzip
import json

import numpy as np
import pytest
import soundfile
from PIL import Image
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.errors import FileError
from regard.runs import fit
from regard.runs.data_changes import describe_changes, stamp_data
from regard.tasks import ImagesTask, LabelsTask, SpeechTask

RECIPE = """
task = "labels"
[data]
train = "rows.csv"
tokenizer_type = "characters"
[model]
type = "classifier"
layers = 1
dim = 16
heads = 2
[train]
steps = 2
batch_tokens = 100
warmup = 1
device = "cpu"
"""


def run_cli(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def labeller(tmp_path):
    rows = [f"text number {n},{'even' if n % 2 == 0 else 'odd'}\n" for n in range(120)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(rows))
    (tmp_path / "task.toml").write_text(RECIPE)
    fit(rg.tasks.recipe(str(tmp_path / "task.toml")), tmp_path / "run")
    return tmp_path / "run"


def test_rows_that_are_gone_are_named_and_accepted(labeller):
    file = labeller.parent / "rows.csv"
    before = file.read_text()
    file.write_text("".join(before.splitlines(keepends=True)[:91]))
    done = run_cli("resume", labeller, "--set", "steps=3")
    assert done.exit_code == 2
    assert "rows.csv: 91 lines, 121 before" in " ".join(done.output.split())
    assert f"regard resume {labeller} --accept-data" in done.output.replace("\n", " ")
    recipe = json.loads((labeller / "recipe.json").read_text())
    assert recipe["recipe"]["train"]["steps"] == 2  # nothing has changed
    file.write_text(before)
    assert run_cli("resume", labeller, "--set", "steps=3").exit_code == 0
    file.write_text(before.replace("number 7,", "number 8,"))
    with pytest.raises(FileError, match=r"rows\.csv: other content of the same size"):
        fit(labeller, settings=["steps=4"])
    done = run_cli("resume", labeller, "--set", "steps=4", "--accept-data")
    assert done.exit_code == 0, done.output
    assert "finished at step 4" in done.output
    fit(labeller)  # accepted for good
    (labeller / "data.json").write_text("[")
    with pytest.raises(FileError, match=r"data\.json: needs the files of the data"):
        fit(labeller)
    (labeller / "data.json").unlink()  # of a run from before it
    fit(labeller)


def test_files_of_every_task_are_looked_at(tmp_path):
    sounds, images = tmp_path / "sounds", tmp_path / "images"
    sounds.mkdir()
    for n in range(3):
        soundfile.write(sounds / f"{n}.wav", np.full(8000, 0.1 * n), 8000)
        (images / f"class{n % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), n).save(images / f"class{n % 2}" / f"{n}.png")
    (sounds / "manifest.tsv").write_text("".join(f"{n}.wav\tone\n" for n in range(3)))
    speech = SpeechTask(folder=str(sounds), sample_rate=8000)
    pictures = ImagesTask(path=str(images))
    before = stamp_data(speech), stamp_data(pictures)
    assert [len(stamps) for stamps in before] == [4, 3]
    soundfile.write(sounds / "1.wav", np.full(9000, 0.3), 8000)
    (images / "class1" / "1.png").unlink()
    Image.new("L", (4, 4), 9).save(images / "class1" / "9.png")
    (line,) = describe_changes(before[0], stamp_data(speech))
    assert line == f"{sounds}/1.wav: 18,044 bytes, 16,044 before"
    gone, new = describe_changes(before[1], stamp_data(pictures))
    assert (gone, new) == (f"gone: {images}/class1/1.png", f"new: {images}/class1/9.png")
    assert stamp_data(rg.tasks.recipe("morse").data) == {}


def test_a_packed_file_is_the_same_data(tmp_path):
    text = "text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(90))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    one, two = (stamp_data(LabelsTask(train=str(tmp_path / x))) for x in ("a.csv", "a.csv.gz"))
    assert list(one.values()) == list(two.values())


def test_many_changes_are_counted():
    before = {f"{n}.txt": {"lines": n} for n in range(10)}
    changed = {name: {"lines": 99} for name in before}
    assert describe_changes(before, changed)[-1] == "5 more files changed"
    assert describe_changes(before, {}) == ["gone: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 5 more"]
