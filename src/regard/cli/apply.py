"""`regard apply`: a run of any task, applied to inputs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.jobs import Confidence, Format, Jobs, Out

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


def apply(
    name: RunName,
    inputs: Inputs = None,
    options: Options = None,
    out: Out = None,
    file_format: Format = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
) -> None:
    """Apply a run of any task to inputs. Prints one line per input.

    The command of the task, such as `regard translate` or `tag`, does the same, with more options.
    A .tsv gets more columns. After Ctrl-C the same command continues an output file.
    """
    apply_any(name, inputs, options, None, out, file_format, jobs, confidence)


def apply_any(
    name: str,
    inputs: list[str] | None,
    options: list[str] | None,
    verb: str | None,
    out: Path | None,
    file_format: str | None,
    jobs: int,
    confidence: bool,
) -> None:
    """Write one line per input; with a verb, the run needs to have it."""
    from regard.cli.jobs import run_job
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


def _parse(text: str) -> int | float | str | list[str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.split(",") if "," in text else text
