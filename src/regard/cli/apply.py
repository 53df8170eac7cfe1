"""`regard apply`, `label` and `tag`, and what all commands that apply a run share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.runs import Answerer, Run

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Run folder or name of a pretrained model.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[INPUT]…",
        help="Texts, one file of lines, or - for standard input; images or sounds by name.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="Option of the task: to=de,fr or max_new_tokens=50."),
]
Out = Annotated[Path | None, typer.Option(help="Output file; standard output if not given.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="lines, tsv or po; by the file's suffix if not given."),
]
Jobs = Annotated[int, typer.Option(help="Processes, of one thread each, for files.")]
Confidence = Annotated[
    bool, typer.Option("--confidence", help="Write the confidence after each output.")
]


def _command(verb: str | None, help_text: str) -> Callable[..., None]:
    """A command that writes one line per input; with a verb, the run needs to have it."""

    def command(
        name: RunName,
        inputs: Inputs = None,
        options: Options = None,
        out: Out = None,
        file_format: Format = None,
        jobs: Jobs = 1,
        confidence: Confidence = False,
    ) -> None:
        from regard.errors import ConfigError
        from regard.runs import load, make_answers
        from regard.runs.contents import require_verb

        values = dict[str, Any]()
        for option in options or ():
            key, equals, text = option.partition("=")
            if not equals:
                raise ConfigError(f"option: needs name=value, got {option!r}; try {key}=…")
            values[key] = _parse(text)
        run = load(name)
        if verb is not None:
            require_verb(run, verb)
        answers = make_answers(run, confidence=confidence, **values)
        raise typer.Exit(
            run_job(
                run, answers, inputs or [], out=out, file_format=file_format, jobs=jobs,
                confidence=confidence, **values,
            )
        )  # fmt: skip

    command.__doc__ = help_text
    return command


apply = _command(
    None,
    """Apply a run of any task to inputs. Prints one line per input.

    The command of the task, such as `regard translate` or `tag`, does the same, with more options.
    A .tsv gets more columns. After Ctrl-C the same command continues an output file.
    """,
)
label = _command(
    "label",
    """Classify texts. Prints one line per text: classes with probabilities, separated by tabs.

    `-o top=1` prints the most probable class only.
    """,
)
tag = _command(
    "tag",
    """Tag the words of texts. Prints one line per text: word/TAG, or the word alone for the tag O.

    A text is split into words as the data of the run is; `-o word_split=spaces` takes words that
    are separated by spaces as they are.
    """,
)


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


def _parse(text: str) -> int | float | str | list[str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.split(",") if "," in text else text
