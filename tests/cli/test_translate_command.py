"""`regard translate` and `regard generate`, as scripts and people use them."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard import runs
from regard.cli.output import TerminalReporter
from regard.runs import FileJob, TaskAnswers, TranslationPipeline, fit, override_settings
from regard.tasks import Translation, recipe

SMALL = [
    "vocab_texts=99",
    "steps=1",
    "valid_size=2",
    "test_size=2",
    "max_new_tokens=5",
    "dim=16",
    "device=cpu",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    place = tmp_path_factory.mktemp("runs") / "run"
    fit(override_settings(recipe("phrases"), ["languages=en,de,fr", *SMALL]), place)
    return str(place)


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> str:
    text = tmp_path_factory.mktemp("text") / "all.txt"
    text.write_text("to be or not to be " * 60)
    place = tmp_path_factory.mktemp("runs") / "writer"
    settings = [f"folder={text}", "length=16", "batch_tokens=64", "steps=1", "layers=1", "dim=12"]
    settings += ["heads=2", "dropout=0", "attention_dropout=0", "device=cpu"]
    fit(override_settings(recipe("shakespeare"), settings), place)
    return str(place)


@pytest.fixture
def shouting(monkeypatch):
    """A pipeline that shouts: its output is known."""

    def translate(self, texts):
        assert not any(map(self.refusal, texts))
        self.counts = self.counts._replace(
            texts=len(texts), source_tokens=3 * len(texts), target_tokens=9
        )
        return [
            [
                self.n_best * [Translation(f"{to} {t.upper()}", -1.5, t != "cut")]
                for to in self.languages
            ]
            for t in texts
        ]

    monkeypatch.setattr(TranslationPipeline, "translate", translate)


def regard(*args: str, **given):
    from regard.cli import app

    return CliRunner().invoke(app, [*args], **given)


# ---- what comes out


def test_texts_give_one_line_each_with_the_language(folder, shouting):
    done = regard("translate", folder, "--to", "de", "one", "two")
    assert (done.exit_code, done.stdout) == (0, "de ONE\nde TWO\n")
    done = regard("translate", folder, "--to", "fr,de", "one", "two")
    assert done.stdout == "fr\tfr ONE\nde\tde ONE\nfr\tfr TWO\nde\tde TWO\n"


def test_lines_stay_lines_whatever_is_wrong_with_one(folder, shouting):
    given = b"one\n\n\xff\xfe\ntwo\r\n" + b"x" * 9999 + b"\nthree"
    done = regard("translate", folder, "--to", "de,fr", "-", input=given)
    assert done.stdout == "de ONE\tfr ONE\n\t\n\t\nde TWO\tfr TWO\n\t\nde THREE\tfr THREE\n"
    assert done.exit_code == 1
    assert "line 3: it needs UTF-8, got byte 0xff at byte 1; try iconv" in done.stderr
    assert "line 5: it needs at most 2048 tokens, got" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_in_another_unicode_encoding_is_translated_as_text(
    folder, shouting, tmp_path, encoding
):
    kinds = {
        "txt": ("one\r\nžluť\r\n", "de ONE\nde ŽLUŤ\n"),
        "tsv": ("one\tnote\n", "one\tnote\tde ONE\n"),
        "po": ('msgid "one"\nmsgstr ""\n', '#, fuzzy\nmsgid "one"\nmsgstr "de ONE"\n'),
    }
    for kind, (given, want) in kinds.items():
        (tmp_path / f"a.{kind}").write_bytes(given.encode(encoding))
        done = regard("translate", folder, "--to", "de", str(tmp_path / f"a.{kind}"))
        assert (done.exit_code, done.stdout.removeprefix("\ufeff")) == (0, want)


def test_bytes_in_other_columns_stay_and_zero_bytes_are_no_text(folder, shouting, tmp_path):
    file = tmp_path / "a.tsv"
    file.write_bytes(b"one\t\xff\xfe\ntwo\x00\tnote\n")
    done = regard("translate", folder, "--to", "de", str(file), "--out", str(file))
    assert done.exit_code == 1
    assert done.stderr.startswith("regard: line 2: it needs text, got a zero byte\n")
    assert f"{file}: 2 inputs in " in done.stderr
    assert ", 1 with a problem" in done.stderr
    assert file.read_bytes() == b"one\t\xff\xfe\tde ONE\ntwo\x00\tnote\t\n"


def test_a_table_gets_one_column_per_language(folder, shouting, tmp_path):
    (tmp_path / "a.tsv").write_text("one\tnote\ntwo\n\tno text\n")
    done = regard("translate", folder, "--to", "de,fr", str(tmp_path / "a.tsv"))
    assert done.exit_code == 0
    assert done.stdout == "one\tnote\tde ONE\tfr ONE\ntwo\tde TWO\tfr TWO\n\tno text\t\t\n"


def test_a_catalog_is_filled_in_its_place(folder, shouting, tmp_path):
    file = tmp_path / "a.po"
    file.write_text('# kept\nmsgid "one"\nmsgstr ""\n\nmsgid "%d"\nmsgstr ""\n')
    done = regard("translate", folder, "--to", "de", str(file), "--out", str(file))
    assert done.exit_code == 1  # %D is not %d
    assert file.read_text() == (
        '# kept\n#, fuzzy\nmsgid "one"\nmsgstr "de ONE"\n\nmsgid "%d"\nmsgstr ""\n'
    )
    assert "skipped: '%d': the translation lost %d" in done.stderr
    assert "filled 1 (marked fuzzy), kept 0, skipped 1" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.po"]


def test_low_confidence_leaves_a_message_of_a_catalog_empty_and_is_counted(
    folder, tmp_path, monkeypatch
):
    file, out = tmp_path / "a.po", tmp_path / "b.po"
    file.write_text("".join(f'msgid "{n}"\nmsgstr ""\n\n' for n in range(65)))

    def translate(self, texts):
        self.threshold = 0.5
        if "64" in texts and not out.with_name("resumed").exists():
            raise KeyboardInterrupt
        sure = [0.2 if text in ("3", "64") else 0.9 for text in texts]
        return [[[Translation("nicht nicht nicht", 0.0, True, confidence=x)]] for x in sure]

    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    command = ["translate", folder, "--to", "de", str(file), "--out", str(out)]
    assert regard(*command).exit_code == 130
    out.with_name("resumed").touch()
    done = regard(*command)
    assert done.exit_code == 1
    assert out.read_text().count("fuzzy") == 63
    assert 'msgid "3"\nmsgstr ""\n' in out.read_text()
    assert "skipped: '3': confidence 0.20 is below 0.50" in done.stderr
    summary = "filled 63 (marked fuzzy), kept 0, skipped 2, 2 of them with low confidence"
    assert summary in done.stderr


def test_a_catalog_may_come_by_standard_input(folder, shouting):
    given = {"input": 'msgid "one"\nmsgstr ""\n'}
    done = regard("translate", folder, "--to", "de", "--format", "po", "-", **given)
    assert done.stdout == '#, fuzzy\nmsgid "one"\nmsgstr "de ONE"\n'


def test_a_file_may_be_written_onto_itself(folder, shouting, tmp_path):
    (tmp_path / "a.tsv").write_text("one\n")
    for _ in range(2):
        regard("translate", folder, "--to", "de", f"{tmp_path}/a.tsv", "--out", f"{tmp_path}/a.tsv")
    assert (tmp_path / "a.tsv").read_text() == "one\tde ONE\tde ONE\n"


def test_the_best_come_with_number_language_and_score(folder, shouting):
    done = regard("translate", folder, "--to", "de", "--n-best", "2", "-", input="one\ntwo\n")
    assert done.stdout == "".join(
        f"{n}\tde\t-1.5000\tde {t}\n" * 2 for n, t in ((1, "ONE"), (2, "TWO"))
    )


def test_an_answer_that_was_cut_is_given_and_reported(folder, shouting):
    done = regard("translate", folder, "--to", "de", "cut")
    assert (done.exit_code, done.stdout) == (1, "de CUT\n")
    assert "'cut': the translation into de was cut at 5 tokens" in done.stderr


def test_the_saving_is_reported_next_to_the_formula(folder, shouting):
    done = regard("translate", folder, "--to", "de,fr", "--cost", "one")
    assert "M = 3 source tokens, N = 5 target tokens" in done.stderr
    assert "L(4Md² + 2M²d)" in done.stderr
    assert "E + 2D = " in done.stderr


def test_words_are_aligned_with_weights_and_drawn(folder, tmp_path, monkeypatch):
    translate = lambda self, texts: [[[Translation("3 Tage", -1.0, True)]]]  # noqa: E731
    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    plot = tmp_path / "a.png"
    done = regard("translate", folder, "--to", "de", "--align", "--plot", str(plot), "3 days")
    first, *links = done.stdout.splitlines()
    assert first == "3 Tage"
    assert [link.split("\t")[1] for link in links] == ["3", "Tage"]
    assert all(link.split("\t")[2] in ("3", "days") for link in links)
    assert all(0 <= float(link.split("\t")[3]) <= 1 for link in links)
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_a_model_that_was_trained_translates(folder):
    done = regard("translate", folder, "--to", "de,fr", "3 days", "--beam", "3")
    assert len(done.stdout.splitlines()) == 2


def test_a_language_model_continues_its_prompt(writer):
    done = regard("generate", writer, "to be", "--max-new-tokens", "9", "--seed", "1")
    assert done.exit_code == 0
    assert done.stdout.startswith("to be")
    assert 5 < len(done.stdout) <= 15
    for given in ("to be", "to be".encode("utf-16")):
        again = regard("generate", writer, "-", "--max-new-tokens", "9", "--seed", "1", input=given)
        assert again.stdout == done.stdout
    greedy = regard("generate", writer, "to be", "--max-new-tokens", "9", "--temperature", "0")
    assert greedy.stdout == regard(
        "generate", writer, "to be", "--max-new-tokens", "9", "--top-k", "1"
    ).stdout  # fmt: skip


# ---- what goes wrong


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--to", "dee", "one"], "to: needs one or more of de fr, got 'dee'; try de"),
        (["one"], "to: needs one or more of de fr, got none"),
        (["--to", "de", "gr\udcfc"], "text: needs UTF-8, got 'gr\\udcfc'; try a file"),
        (["--to", "de", ""], "got ''; it needs words, got none"),
        (["--to", "de", "one " * 3000], "it needs at most 2048 tokens"),
        (["--to", "de", "nowhere.po"], "nowhere.po: needs to be a file, got no such file"),
        (
            ["--to", "de", "--format", "xml", "one"],
            "format: needs one of lines, tsv, po, got 'xml'",
        ),
        (["--to", "de", "one", "--out", "no/where.txt"], "out: needs a folder that exists, got no"),
        (["--to", "de", "one", "--out", "."], ".: cannot be written, Is a directory"),
        (["--to", "de,fr", "--plot", "a.png", "one"], "plot: needs one text and one language"),
        (
            ["--to", "de", "--n-best", "2", "--beam", "1", "one"],
            "n_best: needs 1 to beam_width=1, got 2",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(folder, args, message):
    done = regard("translate", folder, *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("users_view")
def test_a_broken_catalog_stops_before_anything_is_written(folder, tmp_path):
    (tmp_path / "a.po").write_text('msgid "one"\nmsgstr ""\nnonsense\n')
    out = tmp_path / "b.po"
    done = regard("translate", folder, "--to", "de", f"{tmp_path}/a.po", "--out", str(out))
    assert done.exit_code == 2
    assert "needs keywords and quoted texts, got 'nonsense' in line 3" in done.stderr
    assert not out.exists()
    done = regard("translate", folder, "--to", "de,fr", f"{tmp_path}/a.po")
    assert "to: needs one language for a .po, got de fr" in done.stderr


@pytest.fixture
def stopping(monkeypatch):
    """A pipeline that is interrupted when it comes to the text `stop`."""

    def translate(self, texts):
        if "stop" in texts:
            raise KeyboardInterrupt
        return [[[Translation(text.upper(), 0.0, True)] for _ in self.languages] for text in texts]

    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    monkeypatch.setattr(TranslationPipeline, "batch_size", 1)


def test_an_interrupted_file_is_kept_and_continued_by_the_same_command(
    folder, tmp_path, monkeypatch, stopping
):
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("one\n\xff\nstop\ntwo\n")
    out.write_text("old")
    command = ["translate", folder, str(file), "--to", "de", "--out", str(out)]
    done = regard(*command)
    assert (done.exit_code, out.read_text()) == (130, "old")
    assert (tmp_path / "out.txt.partial").read_text() == "ONE\nÿ\n".upper()
    assert f"after 2 inputs; the finished part is in {out}.partial, and the same" in done.stderr
    other = regard(*[x.replace("de", "fr") if x == "de" else x for x in command])
    assert other.exit_code == 2
    assert "needs the same job to be continued, got another to; try deleting it" in other.stderr
    changed = file.read_text()
    file.write_text("won" + changed[3:])
    assert "needs the same inputs to be continued, got others" in regard(*command).stderr
    file.write_text(changed)
    seen = []

    def translate(self, texts):
        seen.extend(texts)
        return [[[Translation(text.upper(), 0.0, True)]] for text in texts]

    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    done = regard(*command)
    assert (done.exit_code, seen) == (0, ["stop", "two"])
    assert "continued after 2 inputs" in done.stderr
    assert out.read_text() == "ONE\nŸ\nSTOP\nTWO\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_an_interrupt_before_anything_is_done_leaves_nothing(folder, tmp_path, stopping):
    out = tmp_path / "out.txt"
    done = regard("translate", folder, "--to", "de", "-", "--out", f"{out}", input="stop\none\n")
    assert (done.exit_code, done.stderr) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_catalog_is_continued(folder, tmp_path, monkeypatch):
    file = tmp_path / "a.po"
    file.write_text("".join(f'msgid "{n}"\nmsgstr ""\n\n' for n in range(65)))

    def translate(self, texts):
        if "64" in texts:
            raise KeyboardInterrupt
        return [[[Translation(text + "!", 0.0, True)]] for text in texts]

    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    before = file.read_text()
    command = ["translate", folder, "--to", "de", str(file), "--out", str(file)]
    done = regard(*command)
    assert (done.exit_code, file.read_text()) == (130, before)
    seen = []

    def translate_rest(self, texts):
        seen.extend(texts)
        return [[[Translation(text + "!", 0.0, True)]] for text in texts]

    monkeypatch.setattr(TranslationPipeline, "translate", translate_rest)
    assert regard(*command).exit_code == 0
    filled = file.read_text()
    assert (seen, filled.count("fuzzy"), filled.count('msgstr ""')) == (["64"], 65, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["a.po"]
    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    done = regard("translate", folder, "--to", "de", "--format", "po", "-", input=before)
    assert (done.exit_code, done.stdout) == (130, "")


def test_a_fifo_gets_each_line_and_standard_output_by_name_is_standard_output(
    folder, tmp_path, shouting
):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()), daemon=True)
    reader.start()
    regard("translate", folder, "--to", "de", "-", "--out", str(fifo), input="one\ntwo\n")
    reader.join(10)
    assert (got, fifo.is_fifo()) == (["de ONE\nde TWO\n"], True)
    done = regard("translate", folder, "--to", "de", "--out", "/dev/stdout", "one")
    assert done.stdout == "de ONE\n"


def test_a_signal_keeps_what_is_done_and_says_where(folder, tmp_path):
    out = tmp_path / "out.txt"
    command = [sys.executable, "-m", "regard", "translate", folder, "--to", "de", "-"]
    given = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--out", str(out)], **given) as process:
        process.stdin.write(b"3 days\n")
        process.stdin.flush()
        partial = tmp_path / "out.txt.partial"
        while not (partial.exists() and partial.stat().st_size):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        said = process.stderr.read().decode()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"the finished part is in {out}.partial" in said
    assert "Traceback" not in said
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"out.txt.partial", "out.txt.partial.json"}


def test_a_bar_is_drawn_on_a_terminal_that_shows_nothing_else(
    folder, tmp_path, shouting, monkeypatch
):
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("3 days\n" * 20)
    answers = TaskAnswers(TranslationPipeline(runs.load_run(folder), ["de"]))

    def shown(to: Path | None, stdout: bool) -> str:
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", terminal)
            if stdout:
                patched.setattr(sys, "stdout", terminal)
            where = {"file": file, "out": to or sys.stdout, "verb": "translating"}
            FileJob(answers=answers, **where, reporter=TerminalReporter()).run()
        with os.fdopen(ours, "rb", buffering=0) as screen:
            return screen.read(1 << 16).decode()

    assert "translating" in shown(out, stdout=False)
    assert "translating" in shown(out, stdout=True)
    assert "translating" not in shown(None, stdout=True)  # the lines themselves are seen there
    assert out.read_text() == "de 3 DAYS\n" * 20


def test_lines_are_answered_as_they_come_and_a_closed_pipe_is_no_crash(folder):
    command = [sys.executable, "-m", "regard", "translate", folder, "--to", "de", "-"]
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **given, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        process.stdin.write(b"3 days\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")  # before the next line is there
        process.stdout.close()
        process.stdin.write(b"4 days\n")
        process.stdin.close()
        said = process.stderr.read().decode()
        assert "Traceback" not in said
        assert "Exception ignored" not in said
    assert process.returncode == 1


def test_the_library_and_the_command_say_the_same(folder):
    found = runs.load_run(folder).translate(["3 days"], to=["de", "fr"])
    done = regard("translate", folder, "--to", "de,fr", "3 days")
    assert done.stdout == f"de\t{found['de'][0]}\nfr\t{found['fr'][0]}\n"
