"""Shared by commands that apply a run: their options, and one call of `regard.runs.FileJob`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.runs import Answerer, Run

Out = Annotated[Path | None, typer.Option(help="Output file; standard output if not given.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="lines, tsv or po; by the file's suffix if not given."),
]
Jobs = Annotated[int, typer.Option(help="Processes, of one thread each, for files.")]
Confidence = Annotated[
    bool, typer.Option("--confidence", help="Write the confidence after each output.")
]


def run_job(
    run: "Run",
    answers: "Answerer",
    arguments: list[str] | dict[str, Any],
    *,
    out: Path | None = None,
    file_format: str | None = None,
    jobs: int = 1,
    verb: str = "applying",
    **options: Any,
) -> int:
    """Answer the arguments of a command, or what `read_arguments` made of them; the exit code.

    `options` distinguish the job from others that write the same file.
    """
    import sys

    from regard.cli.output import TerminalReporter, exit_code
    from regard.files import file_descriptor
    from regard.runs import FileJob, run_identity

    if isinstance(arguments, list):
        takes_files = answers.takes_files
        arguments = {"inputs": arguments} if takes_files else read_arguments(arguments, file_format)
    job = FileJob(
        answers=answers,
        out=sys.stdout if out is None or file_descriptor(out) == 1 else out,
        file_format=file_format,
        jobs=jobs,
        identity=run_identity(run, **options),
        verb=verb,
        reporter=TerminalReporter(),
        **arguments,
    )
    report = job.run()
    return exit_code(report.inputs, report.failed, report.problems + report.warnings)


def read_arguments(arguments: list[str], file_format: str | None) -> dict[str, Any]:
    """`inputs` or `file` of a FileJob: texts, one file, or standard input for - or nothing."""
    import sys

    from regard.errors import ConfigError, FileError
    from regard.runs.apply.file_job import FORMATS

    if not arguments and sys.stdin.isatty():
        raise ConfigError("text: needs a text, a file or - for standard input, got none")
    if arguments in ([], ["-"]):
        return {"file": sys.stdin.buffer}
    file = Path(arguments[0])
    if len(arguments) == 1 and _is_file(file):
        return {"file": file}
    is_named = file.suffix in (".po", ".tsv", ".txt") or file_format in FORMATS
    if len(arguments) == 1 and is_named:
        raise FileError(f"{file}: needs to be a file, got no such file")
    return {"inputs": arguments}


def read_input(text: str) -> str:
    """A text, or that of a file or of standard input for -, without its last line break."""
    import sys

    from regard.files import read_text

    if text == "-":
        return read_text("standard input", sys.stdin.buffer.read()).removesuffix("\n")
    is_named = text.endswith(".txt") and not any(map(str.isspace, text))
    return read_text(text).removesuffix("\n") if is_named or _is_file(Path(text)) else text


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long to be a file name
        return False
