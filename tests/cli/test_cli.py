"""The command line, run as a user runs it."""

import os
import pkgutil
import resource
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import regard.cli
from regard.cli import COMMANDS, MODULES, app, commands


def run(*args: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, **kwargs)


def test_help_does_not_import_torch():
    done = run(
        "-c",
        "import sys\nfrom regard.cli import main\nsys.argv = ['regard', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('heavy:', [m for m in ('torch', 'numpy', 'regard.ops') if m in sys.modules])",
    )
    assert "demo" in done.stdout
    assert "heavy: []" in done.stdout


def test_help_answers_within_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run("-m", "regard", "--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # its own time, not the clock's: other tests may run beside it
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize("name", commands)
def test_every_command_and_each_of_its_options_has_a_help_text(name):
    from typer.main import get_command

    command = get_command(app).commands[name]
    assert command.help, "write a docstring"
    options = [x for x in command.params if x.name != "help"]
    assert [x.name for x in options if not getattr(x, "help", None)] == []
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
    assert CliRunner().invoke(app, [name, "--no-such-option"]).exit_code == 2


def test_every_file_of_the_command_line_is_a_command():
    files = {x.name for x in pkgutil.iter_modules(regard.cli.__path__)}
    assert files - {"output"} <= {*COMMANDS.split(), *MODULES.values()}, (
        "add it to COMMANDS in cli/__init__.py"
    )


def test_version_names_what_matters_for_a_bug_report():
    lines = run("-m", "regard", "version").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["regard", "python", "torch"]


def test_a_terminal_without_unicode_gets_escapes():
    code = "from regard.cli import main\ntry: main()\nexcept SystemExit: print('∞ ██')"
    done = run("-c", code, "version", env=dict(os.environ, PYTHONIOENCODING="ascii"))
    assert done.returncode == 0
    assert done.stdout.endswith("\\u221e \\u2588\\u2588\n")


def test_an_unknown_command_exits_with_2_and_says_so():
    done = run("-m", "regard", "demmo")
    assert done.returncode == 2
    assert "demmo" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def stopping(monkeypatch):
    """The app with one more command, which stops as asked."""
    import regard.cli
    from regard.errors import ShapeError

    kinds = {
        "ours": ShapeError("dim: needs a multiple of heads=3, got [8]"),
        "key": KeyboardInterrupt(),
    }
    monkeypatch.setattr(
        regard.cli.app, "registered_commands", list(regard.cli.app.registered_commands)
    )

    @regard.cli.app.command()
    def stop(kind: str) -> None:
        raise kinds.get(kind, ZeroDivisionError("a fault of ours"))

    return lambda kind: CliRunner().invoke(regard.cli.app, ["stop", kind])


def test_a_callers_mistake_is_one_line_on_stderr_and_exit_code_2(stopping):
    done = stopping("ours")
    assert done.exit_code == 2
    assert done.stderr == "regard: dim: needs a multiple of heads=3, got [8]\n"
    assert done.stdout == ""


@pytest.mark.parametrize("is_first", [True, False])
def test_a_training_that_a_signal_stopped_exits_with_its_number(is_first, tmp_path, capsys):
    from regard.cli.train import print_outcome
    from regard.train import Outcome

    with pytest.raises(typer.Exit) as stopped:
        print_outcome(Outcome(7, "interrupted", {}, signal=15, folder=tmp_path), is_first)
    assert stopped.value.exit_code == 128 + 15
    assert ("saved at step 7" in capsys.readouterr().out) == is_first


def test_an_interrupt_exits_with_130(stopping):
    assert stopping("key").exit_code == 130


def test_our_own_fault_is_not_dressed_up_as_the_callers(stopping):
    assert isinstance(stopping("else").exception, ZeroDivisionError)


def test_a_signal_inside_code_that_wraps_errors_still_ends_without_a_traceback(monkeypatch, capsys):
    def wraps(**options):
        try:
            regard.cli._leave(signal.SIGTERM, None)
        except BaseException as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(regard.cli, "app", wraps)
    monkeypatch.setattr(regard.cli, "_signals", [])
    with pytest.raises(SystemExit) as end:
        regard.cli.main()
    assert end.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == ""
