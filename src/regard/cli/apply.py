"""`regard apply`: a run of any task, applied to inputs."""

from typing import Annotated

import typer

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Run folder or name of a pretrained model.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[INPUT]…", help="Texts or files; without any, lines of stdin."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="Option of the task: to=de,fr or max_new_tokens=50."),
]


def apply(name: RunName, inputs: Inputs = None, options: Options = None) -> None:
    """Apply a run of any task to inputs. Prints one line per input.

    The command of the task, such as `regard translate` or `tag`, does the same, with more options.
    """
    print_applied(name, inputs, options)


def print_applied(
    name: str, inputs: list[str] | None, options: list[str] | None, verb: str | None = None
) -> None:
    """Print one line per input; with a verb, the run needs to have it."""
    import sys

    from regard.errors import ConfigError
    from regard.files import read_text
    from regard.runs import load
    from regard.runs.apply.any_task import apply_run
    from regard.runs.contents import require_verb

    values = {}
    for option in options or ():
        key, equals, text = option.partition("=")
        if not equals:
            raise ConfigError(f"option: needs name=value, got {option!r}; try {key}=…")
        values[key] = _parse(text)
    if not inputs:
        inputs = read_text("standard input", sys.stdin.buffer.read()).splitlines()
    run = load(name)
    if verb is not None:
        require_verb(run, verb)
    try:
        outputs = apply_run(run, inputs, **values)
    except TypeError as error:  # an option that the task does not have
        raise ConfigError(f"option: needs one of the task {run.data.name}, got {error}") from error
    for output in outputs:
        print(run.data.format_output(output))


def _parse(text: str) -> int | float | str | list[str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.split(",") if "," in text else text
