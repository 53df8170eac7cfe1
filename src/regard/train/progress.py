"""What a training shows while it runs: a live line on a terminal, plain lines elsewhere."""

import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Progress:
    """Loss, speed and time left, as one line that is kept up to date or as a line now and then.

    >>> with Progress(steps=100) as progress:
    ...     progress.print_line("valid: loss 0.3000")
    valid: loss 0.3000
    """

    def __init__(self, steps: int, *, file: TextIO | None = None, every: float = 5.0):
        self.steps, self.every = steps, every
        # a log file has no width of its own: a line there is never cut in two
        self.console = Console(file=file, highlight=False, soft_wrap=True)
        self.live = Live(console=self.console, transient=True) if self._is_live else None
        self.tokens, self.loss = 0, None
        self.began = self.shown = time.monotonic()
        self.first: int | None = None

    @property
    def _is_live(self) -> bool:
        return self.console.is_terminal

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, step: int, loss: float, tokens: int, lr: float) -> None:
        """One more update was made, of so many tokens."""
        if self.first is None:
            self.first = step - 1
        self.tokens += tokens
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        now = time.monotonic()
        last = step == self.steps
        if self.live is not None:
            self.live.update(Text(self.format_line(step, lr, now - self.began)))
        elif last or now - self.shown >= self.every:
            self.shown = now
            self.print_line(self.format_line(step, lr, now - self.began))

    def format_line(self, step: int, lr: float, seconds: float) -> str:
        """Where the training stands, in one line."""
        made = step - (self.first or 0)
        left = seconds / max(1, made) * (self.steps - step)
        speed = self.tokens / max(seconds, 1e-9)
        return (
            f"step {step}/{self.steps}  loss {self.loss or 0.0:.4f}  lr {lr:.1e}  "
            f"{speed:,.0f} tokens/s  {format_duration(left)} left"
        )

    def print_line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(Text(text))


def format_duration(seconds: float) -> str:
    """A time to be read by people.

    >>> format_duration(75), format_duration(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
