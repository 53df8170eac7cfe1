"""Progress of a training: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

from rich import progress as bars
from rich.console import Console
from rich.live import Live
from rich.text import Text

T = TypeVar("T")


class Progress:
    """Prints loss, speed and time left: one live line, or a plain line every few seconds.

    Args:
        steps: updates in all.
        unit: of the speed, such as "images".
        file: where to print; None is stdout.
        every: seconds between plain lines.

    >>> with Progress(steps=100) as progress:
    ...     progress.print_line("valid: loss 0.3000")
    valid: loss 0.3000
    """

    def __init__(
        self, steps: int, *, unit: str = "tokens", file: TextIO | None = None, every: float = 5.0
    ):
        self.steps, self.unit, self.every = steps, unit, every
        # a log file has no width: its lines are never wrapped
        self.console = Console(file=file, highlight=False, soft_wrap=True)
        is_live = self.console.is_terminal
        self.live = Live(console=self.console, transient=True) if is_live else None
        self.count, self.loss = 0, None
        self.started_at = self.printed_at = time.monotonic()
        self.first_step: int | None = None

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, step: int, loss: float, count: int, lr: float) -> None:
        """Count one update of so many tokens, images or what the unit is."""
        if self.first_step is None:
            self.first_step = step - 1
        self.count += count
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        now = time.monotonic()
        if self.live is not None:
            self.live.update(Text(self.format_line(step, lr, now - self.started_at)))
        elif step == self.steps or now - self.printed_at >= self.every:
            self.printed_at = now
            self.print_line(self.format_line(step, lr, now - self.started_at))

    def format_line(self, step: int, lr: float, seconds: float) -> str:
        """Step, loss, learning rate, speed and time left, in one line."""
        done = step - (self.first_step or 0)
        left = seconds / max(1, done) * (self.steps - step)
        speed = self.count / max(seconds, 1e-9)
        return (
            f"step {step}/{self.steps}  loss {self.loss or 0.0:.4f}  lr {lr:.1e}  "
            f"{speed:,.0f} {self.unit}/s  {format_duration(left)} left"
        )

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        self.console.print(Text(text))


def track(items: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """Yield the items and print how far they are: a bar, or a plain line every five seconds.

    >>> list(track([1, 2], "encoding", total=2))
    [1, 2]
    """
    console = Console(highlight=False, soft_wrap=True)
    columns = (bars.TextColumn("{task.description}: {task.completed:,}"), bars.BarColumn())
    every = 0.2 if console.is_terminal else 5.0
    with bars.Progress(
        *columns, bars.TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task, shown_at = bar.add_task(label, total=total), time.monotonic()
        for number, item in enumerate(items, 1):
            yield item
            if (now := time.monotonic()) - shown_at >= every:
                shown_at = now
                bar.update(task, completed=number)
                if not console.is_terminal:
                    share = f" of about {total:,}" if total else ""
                    console.print(Text(f"{label}: {number:,}{share}"))


def format_duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> format_duration(75), format_duration(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
