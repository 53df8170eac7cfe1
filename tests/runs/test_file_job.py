"""File jobs of every task: formats, confidence, several processes, and resuming."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard as rg
from regard.errors import ConfigError, FileError
from regard.files import PartialFile
from regard.runs import Answer, FileJob, TaskAnswers, apply_file
from regard.tasks import TaskOptions, Text, option
from regard.tasks.registry import TASKS


@dataclass(frozen=True, kw_only=True)
class Upper(TASKS["text"]):
    """A custom task that refuses one input."""

    verb: ClassVar[str] = "upper"
    reads: ClassVar[Text] = Text()

    class Options(TaskOptions):
        """Write texts in capitals."""

        times: int = option(default=1, ge=1, help="Repetitions.")

    def apply(self, run, inputs, options):
        if "bad" in inputs:
            raise ConfigError("input: needs to be good, got bad")
        return [options.times * x.upper() for x in inputs]

    def format_output(self, output):
        return output

    def confidence(self, output):
        return len(output) / 100


@pytest.fixture
def run():
    data = Upper(folder="nowhere")
    recipe = rg.tasks.Recipe(
        name="upper", data=data, model=None, train=rg.train.TrainConfig(steps=1)
    )
    return rg.Run(None, recipe, None, None)


class Recorder:
    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)

    progress = rg.runs.Reporter.progress


def test_lines_and_columns_of_a_task_of_your_own(run, tmp_path):
    file, out, told = tmp_path / "in.tsv", tmp_path / "out.tsv", Recorder()
    file.write_bytes(b"one\tnote\nbad\t\n\n\xff\tx\n")
    answers = TaskAnswers(run, confidence=True, times=2)
    report = FileJob(answers=answers, file=file, out=out, reporter=told).run()
    assert out.read_bytes() == b"one\tnote\tONEONE\t0.0600\nbad\t\t\t\n\t\t\n\xff\tx\t\t\n"
    assert (report.inputs, report.problems, report.failed) == (4, 2, 0)
    assert told.messages[0] == "line 2: input: needs to be good, got bad"
    assert "line 4: it needs UTF-8" in told.messages[1]
    assert told.messages[2].startswith(f"{out}: 4 inputs in ")
    assert apply_file(run, file, out, times=3).problems == 2
    with pytest.raises(ConfigError, match="option: needs one of the task text, got .*tims"):
        apply_file(run, file, out, tims=3)
    with pytest.raises(ConfigError, match="format: needs lines or tsv for this task, got po"):
        FileJob(answers=answers, file=file, out=out, file_format="po")


def test_several_processes_write_what_one_writes(run, tmp_path):
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{n} days\n" for n in range(5000)))
    for jobs in (1, 3):
        apply_file(run, file, tmp_path / f"{jobs}.txt", jobs=jobs)
    assert (tmp_path / "1.txt").read_text() == (tmp_path / "3.txt").read_text() != ""
    with pytest.raises(ConfigError, match="jobs: needs 1 or more, got 0"):
        apply_file(run, file, tmp_path / "0.txt", jobs=0)


class Slow(TaskAnswers):
    """Answers that are interrupted once, after some inputs."""

    def __init__(self, run, stop_at=None):
        super().__init__(run)
        self.batch_size, self.stop_at, self.seen = 7, stop_at, []

    def __call__(self, inputs):
        if self.stop_at is not None and inputs[-1].number >= self.stop_at:
            raise KeyboardInterrupt
        self.seen += [x.number for x in inputs]
        return [Answer([(x.text[::-1],)] * (x.number % 3), warnings=("w",)) for x in inputs]


def test_an_interrupted_job_continues_where_it_was(run, tmp_path):
    file, out, told = tmp_path / "in.txt", tmp_path / "out.txt", Recorder()
    file.write_text("".join(f"line {n}\n" for n in range(100)))
    whole = io.StringIO()
    expected = FileJob(answers=Slow(run), file=file, out=whole).run()
    for stop in (40, 70):
        with pytest.raises(KeyboardInterrupt):
            FileJob(answers=Slow(run, stop), file=file, out=out, reporter=told).run()
        assert not out.exists()
    assert "interrupted after 63 inputs" in told.messages[-1]
    with (tmp_path / "out.txt.partial").open("a") as partial:
        partial.write("x" * 5000)  # of a batch that was not finished, by a killed process
    last = Slow(run)
    report = FileJob(answers=last, file=file, out=out, reporter=told).run()
    assert last.seen == list(range(64, 101))
    assert (out.read_text(), report) == (whole.getvalue(), expected)
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt"]


def test_two_jobs_cannot_write_one_file(tmp_path):
    first = PartialFile(tmp_path / "a", {})
    with pytest.raises(FileError, match="a: needs one job at a time, got another's"):
        PartialFile(tmp_path / "a", {})
    first.close()
    PartialFile(tmp_path / "a", {}).complete()
    assert os.listdir(tmp_path) == ["a"]


def test_prompts_images_and_sounds_are_jobs_too(tmp_path):
    tokenizer = rg.data.ByteTokenizer()
    torch.manual_seed(0)
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    text = rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)
    out = io.StringIO()
    prompts = io.BytesIO(b"import \ndef \n")
    FileJob(answers=TaskAnswers(text, max_new_tokens=5), file=prompts, out=out).run()
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert found == [text.generate(prompt, max_new_tokens=5) for prompt in ("import ", "def ")]
    with pytest.raises(ConfigError, match="confidence: needs a model that has one, got none"):
        FileJob(answers=TaskAnswers(text, confidence=True), inputs=["x"], out=out).run()
    files = [tmp_path / f"{n}.png" for n in range(3)]
    for n, file in enumerate(files):
        Image.new("L", (20 + n, 20), 40 * n).save(file)
    names = [*map(str, files), str(tmp_path / "none.png")]
    options = ["--out", str(tmp_path / "a.tsv"), "--top", "1", "--confidence"]
    from regard.cli import app

    done = CliRunner().invoke(app, ["classify", "glyphs", *names, *options])
    rows = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert done.exit_code == 1
    assert [row[0] for row in rows] == names[:3]
    expected = rg.load("glyphs", device="cpu").classify(files)
    assert [row[3] for row in rows] == [f"{x.confidence:.4f}" for x in expected]


@pytest.mark.slow
def test_a_command_that_is_interrupted_again_and_again_ends_with_the_same_file(tmp_path):
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("".join(f"{n} days and {n % 24} hours\n" for n in range(2, 3000)))
    command = [sys.executable, "-m", "regard", "translate", "phrases", str(file), "--to", "de"]
    subprocess.run([*command, "--out", str(tmp_path / "whole.txt")], check=False)
    codes = []
    for kind in (signal.SIGINT, signal.SIGKILL, None):
        process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.DEVNULL)
        before = state(out)
        while kind and state(out) == before and process.poll() is None:
            time.sleep(0.05)
        if kind:
            process.send_signal(kind)
        codes.append(process.wait())
    assert codes[:2] == [130, -signal.SIGKILL]
    assert out.read_bytes() == (tmp_path / "whole.txt").read_bytes()


def state(out):
    file = out.with_name(f"{out.name}.partial.json")
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_partial_file_is_refused(tmp_path, damage):
    first = PartialFile(tmp_path / "a", {})
    for line in ("one\n", "two\n"):
        first.write(line)
        first.commit({"lines": line})
    first.close()
    partial = tmp_path / "a.partial"
    partial.write_text("one\n" if damage == "truncated" else "one\ntwi\n")
    with pytest.raises(FileError, match=r"a.partial: needs .*; try deleting it"):
        PartialFile(tmp_path / "a", {})
