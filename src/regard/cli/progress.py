"""A progress bar on standard error, for somebody who waits there and sees nothing else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(
    what: str, total: float | None = None, *, prints: bool = False
) -> Iterator[Callable[[float], None]]:
    """While it lasts a bar is shown; calling what comes back with an amount moves it on.

    Nothing is shown where standard error is no terminal, nor where the work `prints` its results to
    the same terminal as it goes.

    >>> with progress("translating", 10) as advance:
    ...     advance(5)
    """
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
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
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)
