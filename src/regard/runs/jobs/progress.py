"""A progress bar on standard error, for somebody who waits there and sees nothing else."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from regard.files import is_stream

Item = TypeVar("Item")


@contextmanager
def progress_bar(
    description: str, total: float | None = None, *, prints_results: bool = False
) -> Iterator[Callable[[float], None]]:
    """While it lasts a bar is shown; calling what comes back with an amount moves it on.

    Nothing is shown where standard error is no terminal, nor where the work `prints` its results to
    the same terminal as it goes.

    >>> with progress_bar("translating", 10) as advance:
    ...     cell_step_projected(5)
    """
    if not sys.stderr.isatty() or (prints_results and sys.stdout.isatty()):
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    end = [TimeElapsedColumn()] if total is None else [TaskProgressColumn(), TimeRemainingColumn()]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *end,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results go where they were sent, not to standard error
    )
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def iterate_with_progress(items: Sequence[Item], description: str) -> Iterator[Item]:
    """The items of a command that prints a result for each, with a bar where nobody sees those.

    >>> list(iterate_with_progress(["a.png", "b.png"], "classifying"))
    ['a.png', 'b.png']
    """
    with progress_bar(description, len(items), prints_results=True) as advance:
        for item in items:
            yield item
            advance(1)


def report_written(out: Path, message: str) -> None:
    """Print what was written: on standard output, or on standard error if that was written to."""
    print(message, file=sys.stderr if is_stream(out) else sys.stdout)
