"""Asked to stop, a training ends its update, saves and leaves; asked twice, it leaves at once."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Which signal came, if any.

    >>> StopRequest().signal is None
    True
    """

    signal: int | None = None

    def counts(self) -> tuple[int, ...]:
        """A 1 for the kind that came, in the order of KINDS: what ranks add up."""
        return tuple(int(self.signal == kind) for kind in SIGNALS)


def received_signal(counts: Sequence[int]) -> int | None:
    """The signal that ranks were asked to stop by, from the sums of what each says.

    >>> received_signal([0, 2]) == signal.SIGTERM, received_signal([0, 0])
    (True, None)
    """
    return next((kind for kind, count in zip(SIGNALS, counts, strict=True) if count), None)


@contextmanager
def defer_signals(*, repeatedly: bool = False) -> Iterator[StopRequest]:
    """While it lasts, Ctrl-C and SIGTERM are noted instead of obeyed, once; if `patient`, always.

    >>> with defer_signals() as asked:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> asked.signal == signal.SIGTERM
    True
    """
    asked = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # Python allows it only there
        yield asked
        return
    before = {kind: signal.getsignal(kind) for kind in SIGNALS}

    def note(kind: int, frame: FrameType | None) -> None:
        asked.signal = kind
        if not repeatedly:
            signal.signal(kind, before[signal.Signals(kind)])  # the second time is obeyed

    for kind in SIGNALS:
        signal.signal(kind, note)
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def block_signals() -> Iterator[None]:
    """While it lasts, processes that are started do not receive SIGINT and SIGTERM.

    A signal to the whole process group would end torch's compile workers, and the training would
    wait for them for ever. A child inherits the mask of the thread that starts it, so this thread
    blocks the signals, and an idle one takes them in its place.

    >>> with block_signals():
    ...     signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        over.set()
