"""Asked to stop, a training ends its update, saves and leaves; asked twice, it leaves at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Asked:
    """Which signal came, if any.

    >>> Asked().signal is None
    True
    """

    signal: int | None = None


@contextmanager
def interrupts() -> Iterator[Asked]:
    """While it lasts, Ctrl-C and SIGTERM are noted instead of obeyed, once.

    >>> with interrupts() as asked:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> asked.signal == signal.SIGTERM
    True
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():  # Python allows it only there
        yield asked
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def note(kind: int, frame: FrameType | None) -> None:
        asked.signal = kind
        signal.signal(kind, before[signal.Signals(kind)])  # the second time is obeyed

    for kind in kinds:
        signal.signal(kind, note)
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
