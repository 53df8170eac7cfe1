"""The process of a training: signals, random state, and the progress line."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, TypeVar

import torch
from rich import progress as bars
from rich.console import Console
from rich.live import Live
from rich.text import Text
from torch import Tensor

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PLAIN_SECONDS = 5.0  # between lines of progress where there is no terminal


class StopRequest:
    """The signal received while signals were deferred, if any."""

    signal: int | None = None

    def counts(self) -> tuple[int, ...]:
        """One 0 or 1 per signal of SIGNALS: ranks sum these."""
        return tuple(int(self.signal == number) for number in SIGNALS)


def received_signal(counts: Sequence[int]) -> int | None:
    """The signal that any rank received, from `StopRequest.counts` summed over ranks."""
    return next((number for number, count in zip(SIGNALS, counts, strict=True) if count), None)


@contextmanager
def defer_signals(*, repeatedly: bool = False) -> Iterator[StopRequest]:
    """Record signals that end a process instead: the first one, or with `repeatedly` all.

    SIGINT, SIGTERM and SIGHUP, of a terminal that closes; nohup ignores that, and it stays so.

    >>> with defer_signals() as request:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> request.signal == signal.SIGTERM
    True
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # handlers can be set only there
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def record(number: int, frame: FrameType | None) -> None:
        request.signal = number
        if not repeatedly:
            signal.signal(number, before[signal.Signals(number)])  # the second one acts

    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, record)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def block_signals() -> Iterator[None]:
    """Start child processes with SIGNALS blocked.

    A signal to the whole process group would kill torch's compile workers, and the training would
    wait for them forever. A child inherits the mask of the thread that starts it, so this thread
    blocks the signals, and an idle one receives them instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        done.set()


class RngState(NamedTuple):
    """The state of the CPU generator and, on a GPU, of that device's generator."""

    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def current(cls, device: torch.device) -> "RngState":
        """The state now; of a GPU it is a seed and an offset on the CPU: no synchronisation."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda)

    def restore(self, device: torch.device) -> None:
        """Set the generators; a state without CUDA leaves a GPU's generator as it is."""
        torch.set_rng_state(self.cpu)
        if device.type == "cuda" and self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)

    def to_hex(self) -> dict[str, str]:
        """As hexadecimal strings, for JSON."""
        states = self._asdict().items()
        return {name: x.numpy().tobytes().hex() for name, x in states if x is not None}

    @classmethod
    def from_hex(cls, values: dict[str, str]) -> "RngState":
        """The state that `to_hex` wrote."""
        states = {name: list(bytes.fromhex(x)) for name, x in values.items()}
        return cls(**{name: torch.tensor(x, dtype=torch.uint8) for name, x in states.items()})


T = TypeVar("T")


class Progress:
    """Prints loss, speed and time left: one live line, or a plain line every few seconds.

    Args:
        steps: updates in all.
        unit: of the speed, such as "images".

    >>> with Progress(steps=100) as progress:
    ...     progress.print_line("valid: loss 0.3000")
    valid: loss 0.3000
    """

    def __init__(self, steps: int, *, unit: str = "tokens"):
        self.steps, self.unit = steps, unit
        # a log file has no width: its lines are never wrapped
        self.console = Console(highlight=False, soft_wrap=True)
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
        elif step == self.steps or now - self.printed_at >= PLAIN_SECONDS:
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
    every = 0.2 if console.is_terminal else PLAIN_SECONDS
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
