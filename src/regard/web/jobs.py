"""Jobs of the worker: cancellable computations that report progress."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from regard.errors import RegardError

READING = 0.8  # share of a job that is spent in the blocks of a model
CANCELLED = "request: needs a client that waits, got a newer request or none"


class Cancelled(RegardError):
    """The client left, or a newer request of the same view replaced this one."""


def failure_text(error: Exception) -> str:
    """What a client reads about a mistake of ours; the traceback stays in the server's log.

    >>> failure_text(KeyError("x"))
    'server: failed with KeyError; its log has the traceback'
    """
    return f"server: failed with {type(error).__name__}; its log has the traceback"


class Job:
    """One computation: `check` it between steps, `report` how far it is.

    >>> job = Job()
    >>> job.cancel()
    >>> job.check()
    Traceback (most recent call last):
        ...
    regard.web.jobs.Cancelled: request: needs a client that waits, got a newer request or none
    """

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self.progress: tuple[float, str] = (0.0, "waiting")

    def cancel(self) -> None:
        """Make the next `check` raise; a job that has not begun never begins."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if nobody waits any more."""
        if self.is_cancelled:
            raise Cancelled(CANCELLED)

    def report(self, fraction: float, text: str = "") -> None:
        """Say how far the job is, from 0 to 1 and never back, and stop here if it is cancelled."""
        self.check()
        self.progress = (min(max(fraction, self.progress[0]), 1.0), text)

    def run(self, compute: Callable[[], Any]) -> Any:
        """The result of a computation that is checked at every call of torch, for 1 to 3 µs each.

        >>> Job().run(lambda: torch.ones(2).sum())
        tensor(2.)
        """
        self.check()
        with _Checked(self):
            return compute()

    @contextmanager
    def checking(self, model: nn.Module, text: str = "running the model") -> Iterator[None]:
        """Check and report before each block of a model that runs inside the `with` block.

        The blocks are `READING` of the job: what was recorded is measured after them.
        """
        stacks = [x for x in model.modules() if isinstance(x, nn.ModuleList)]
        blocks = [block for stack in stacks for block in stack]
        hooks = [
            block.register_forward_pre_hook(
                lambda *_, n=n: self.report(READING * n / len(blocks), text)
            )
            for n, block in enumerate(blocks)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _Checked(TorchFunctionMode):
    """Ends a computation within a block or a loop over tiles, wherever the client leaves."""

    def __init__(self, job: Job):
        super().__init__()
        self.job = job

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.job.check()
        return func(*args, **(kwargs or {}))
