"""The command line: one file a command. Only a command that runs imports torch."""

import io
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a log file in ASCII is no reason to stop
    app(prog_name="regard")
