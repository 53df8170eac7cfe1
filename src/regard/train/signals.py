"""SIGINT and SIGTERM during training: the first ends after the update, the second at once."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    """Record SIGINT and SIGTERM instead of acting on them: the first one, or with `repeatedly` all.

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

    for number in SIGNALS:
        signal.signal(number, record)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def block_signals() -> Iterator[None]:
    """Start child processes with SIGINT and SIGTERM blocked.

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
