"""The command line: commands by subject; torch is imported only by a command that runs."""

import codecs
import io
import os
import signal
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from regard.cli.apply import command_from
from regard.errors import RegardError
from regard.tasks.verb import library_verbs

__all__ = ["app", "main"]

# each is the function, or group of functions, of that name in the module of that name; the verbs
# of tasks are commands too
COMMANDS = """
    apply ask claims class cost data demo evaluate export get heads look new quantize recipes report
    resume runs serve tokenizer train verify version view work
"""
# or in the module of another command
MODULES = dict.fromkeys(["data", "new"], "recipes")
MODULES |= dict.fromkeys(["cost", "evaluate", "export", "get", "quantize", "report"], "runs")
MODULES |= {
    "class": "classroom",
    "resume": "train",
    "version": "output",
    "heads": "look",
    "verify": "look",
}


class Commands(TyperGroup):
    """The commands; errors of the caller are printed as one line, with exit code 2."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name: of the verb of a custom task too, such as one of an imported file."""
        if command := super().get_command(ctx, cmd_name):
            return command
        from regard.tasks.registry import ENTRY_POINTS, all_tasks

        for entry in entry_points(group=ENTRY_POINTS):
            entry.load()
        verb = next((task for task in all_tasks().values() if task.verb == cmd_name), None)
        if verb is None:
            return None
        group = typer.Typer()
        group.command(cmd_name)(command_from(verb))
        return typer.main.get_command(group)

    def invoke(self, ctx: Any) -> Any:
        from regard.files import import_file

        try:
            for file in ctx.params["files"] or ():
                import_file(file)
            return super().invoke(ctx)
        except RegardError as error:
            print(f"regard: {error}", file=sys.stderr)  # not by rich: a path is no markup
            raise typer.Exit(2) from None
        except BrokenPipeError:
            raise  # the reader of our output has closed the pipe: click exits silently
        except OSError as error:  # a folder or disk that cannot be read or written
            if error.errno is None:
                raise
            place = f"{error.filename}: " if error.filename else ""
            print(f"regard: {place}{error.strerror}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    help="A workbench for sequence models: inspect, explain and verify every number.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # bugs keep Python's traceback, to be reported
)


def _print_version(is_given: bool) -> bool:
    if is_given:
        print(f"regard {installed('regard')}")
        raise typer.Exit
    return False


@app.callback()
def import_files(
    files: Annotated[
        list[Path] | None,
        typer.Option("--import", help="Python file that registers custom tasks or models."),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """A workbench for sequence models: inspect, explain and verify every number."""


commands: dict[str, Any] = {verb.verb: command_from(verb) for verb in library_verbs()}
for name in COMMANDS.split():
    function = f"{name}_" if iskeyword(name) else name
    commands[name] = getattr(import_module(f"regard.cli.{MODULES.get(name, name)}"), function)
for name, command in sorted(commands.items()):
    if isinstance(command, typer.Typer):  # with commands of its own
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def main() -> None:
    """Entry point of `regard`."""
    escapes = _escapes()
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is signal.SIG_DFL:  # ignored under nohup
            signal.signal(kind, _leave)
    code: Any = 0
    try:
        app(prog_name="regard")
    except SystemExit as end:
        code = end.code
    except Exception:  # code that a signal stopped may turn our SystemExit into its own error
        if not _signals:
            raise
        code = 128 + _signals[-1]
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more when it ends
        if not isinstance(error, BrokenPipeError):
            print(f"regard: standard output: cannot be written, {error.strerror}", file=sys.stderr)
            code = code or 2
    if escapes:
        print(
            f"regard: standard output: needs UTF-8 for {len(escapes)} characters, got "
            f"{sys.stdout.encoding}: written as \\uXXXX; try PYTHONIOENCODING=utf-8",
            file=sys.stderr,
        )
        code = code or 1
    sys.exit(code)


_signals: list[int] = []  # received so far


def _leave(kind: int, frame: object) -> None:
    """Exit as on Ctrl-C: files that are being written are cleaned up."""
    _signals.append(kind)
    raise SystemExit(128 + kind)


def _escapes() -> list[str]:
    """Make standard output write characters outside its encoding as \\uXXXX, and collect them."""
    escaped: list[str] = []

    def escape(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        text = error.object[error.start : error.end]
        if all("\udc80" <= character <= "\udcff" for character in text):
            # bytes that could not be decoded before
            return codecs.lookup_error("surrogateescape")(error)
        escaped.extend(text)
        return codecs.lookup_error("backslashreplace")(error)

    codecs.register_error("regard.escape", escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="regard.escape")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    return escaped
