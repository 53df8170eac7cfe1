"""The command line: one file a command. Only a command that runs imports torch."""

import codecs
import io
import os
import signal
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from regard.cli.classify import classify
from regard.cli.cost import cost
from regard.cli.demo import demo
from regard.cli.evaluate import evaluate
from regard.cli.export import export
from regard.cli.generate import generate
from regard.cli.look import look
from regard.cli.quantize import quantize
from regard.cli.resume import resume
from regard.cli.runs import runs
from regard.cli.tour import tour
from regard.cli.train import train
from regard.cli.transcribe import transcribe
from regard.cli.translate import translate
from regard.cli.version import version
from regard.cli.work import work
from regard.errors import RegardError

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """All commands, and what a caller sees when one of them stops."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RegardError as error:
            print(f"regard: {error}", file=sys.stderr)  # plain: a path in it is not rich markup
            raise typer.Exit(2) from None
        except BrokenPipeError:
            raise  # whoever read our output has seen enough: click ends without a word
        except OSError as error:  # a folder or disk that refuses is no fault of ours
            if error.errno is None:
                raise
            place = f"{error.filename}: " if error.filename else ""
            print(f"regard: {place}{error.strerror}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    help="A workbench for sequence models: every number can be seen, asked about and checked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # our own faults keep Python's traceback, to be reported
)
app.command()(classify)
app.command()(cost)
app.command()(demo)
app.command()(evaluate)
app.command()(export)
app.command()(generate)
app.command()(look)
app.command()(quantize)
app.command()(resume)
app.command()(runs)
app.command()(tour)
app.command()(train)
app.command()(transcribe)
app.command()(translate)
app.command()(version)
app.command()(work)


def main() -> None:
    """Entry point of `regard`."""
    escapes = _escapes()
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is signal.SIG_DFL:  # under nohup it is not
            signal.signal(kind, _leave)
    code: Any = 0
    try:
        app(prog_name="regard")
    except SystemExit as end:
        code = end.code
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


def _leave(kind: int, frame: object) -> None:
    """End as on Ctrl-C: files that are being written are put away."""
    raise SystemExit(128 + kind)


def _escapes() -> list[str]:
    """Make standard output write what its encoding lacks as \\uXXXX, and collect it."""
    escaped: list[str] = []

    def escape(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        text = error.object[error.start : error.end]
        if all("\udc80" <= sign <= "\udcff" for sign in text):
            return codecs.lookup_error("surrogateescape")(error)  # bytes that were no text before
        escaped.extend(text)
        return codecs.lookup_error("backslashreplace")(error)

    codecs.register_error("regard.escape", escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="regard.escape")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    return escaped
