"""`regard apply`: a run of any task, applied to inputs."""

from typing import Annotated

import typer


def apply(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="Run folder or name of a pretrained model.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]…", help="Texts or files; without any, lines of stdin."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Option of the task: to=de,fr or max_new_tokens=50."),
    ] = None,
) -> None:
    """Apply a run of any task to inputs. Prints one line per input.

    `regard translate`, `generate`, `classify` and `transcribe` do the same with more options.
    """
    import sys

    from regard.errors import ConfigError
    from regard.files import read_text
    from regard.runs import load
    from regard.runs.apply.any_task import apply_run, format_applied

    values = {}
    for option in options or ():
        key, equals, text = option.partition("=")
        if not equals:
            raise ConfigError(f"option: needs name=value, got {option!r}; try {key}=…")
        values[key] = _parse(text)
    if not inputs:
        inputs = read_text("standard input", sys.stdin.buffer.read()).splitlines()
    run = load(name)
    try:
        outputs = apply_run(run, inputs, **values)
    except TypeError as error:  # an option that the task does not have
        raise ConfigError(f"option: needs one of the task {run.data.name}, got {error}") from error
    for output in outputs:
        print(format_applied(run, output))


def _parse(text: str) -> int | float | str | list[str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.split(",") if "," in text else text
