"""One thread that runs the models: waiting requests are batched, streams advance together."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from regard.errors import RegardError
from regard.web.jobs import CANCELLED, Cancelled, Job

MAX_WAITING = 256  # requests; more are refused with 503
MAX_BATCH = 32  # inputs that are computed together
MAX_STREAMS = 32  # that advance together; others wait
MAX_WINDOW, WINDOW_SHARE = 0.05, 0.2  # seconds to wait for a batch; at most, and of the last batch
SHUTDOWN = "server: needs to be running, got a shutdown"


class Busy(RegardError):
    """The queue is full; the caller should try again later."""


@runtime_checkable
class StreamSource(Protocol):
    """What streams are made of, such as a `regard.runs.TextGenerator`."""

    def step(self) -> list[tuple[Any, Any]]:
        """The next piece of each stream; a stream has `ended` after its last."""
        ...

    def remove(self, stream: Any, /) -> None:
        """End a stream early."""
        ...


@dataclass(eq=False)
class _Request:
    key: Hashable  # requests with equal keys can be computed as one batch
    inputs: Sequence[Any]
    compute: Callable[[list[Any]], Sequence[Any]]
    priority: int = 0
    job: Job | None = None  # checked and cancelled while it is computed
    view: Hashable | None = None  # a newer request of the same view replaces this one
    future: Future = field(default_factory=Future)

    @property
    def is_cancelled(self) -> bool:
        return self.future.cancelled() or (self.job is not None and self.job.is_cancelled)

    def fail(self, error: Exception) -> None:
        """Set the exception of the future, unless it is cancelled."""
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(eq=False)
class Stream:
    """A stream of pieces; `cancel` ends it early."""

    source: Any
    begin: Callable[[], Any]  # adds it to the source
    emit: Callable[[Any], None]  # gets the pieces, an exception if there is one, then END
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Stop before the next piece."""
        self.is_cancelled = True


END = object()  # emitted after the last piece of a stream


class Worker:
    """Runs models in one thread, since torch uses all cores for one call.

    Waiting requests with the same key are computed as one batch; between two batches all open
    streams advance by one piece, so that a long generation does not block short requests.

    >>> worker = Worker()
    >>> futures = [worker.submit("double", [n], lambda inputs: [2 * x for x in inputs])
    ...            for n in range(3)]
    >>> [future.result() for future in futures]
    [[0], [2], [4]]
    >>> worker.close()
    """

    def __init__(self, *, max_waiting: int = MAX_WAITING, max_batch: int = MAX_BATCH):
        self.max_waiting, self.max_batch = max_waiting, max_batch
        self.batch_sizes: Counter[int] = Counter()
        self._waiting: deque[_Request] = deque()
        self._joining: deque[Stream] = deque()
        self._running: list[_Request] = []
        self._open: dict[Any, Stream] = {}
        self._expected, self._window = 0, 0.0
        self._changed, self._is_closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="regard-worker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests and streams that have not begun, without those that nobody waits for."""
        return sum(not x.is_cancelled for x in tuple(self._waiting)) + len(self._joining)

    @property
    def streams(self) -> int:
        """Streams that have begun."""
        return len(self._open)

    def submit(
        self, key: Hashable, inputs: Sequence[Any], compute: Callable[[list[Any]], Sequence[Any]]
    ) -> Future:
        """The future of `compute(inputs)`, possibly computed in one call with equal requests."""
        request = _Request(key, inputs, compute)
        self._enqueue(self._waiting, request)
        return request.future

    def submit_job(
        self,
        job: Job,
        compute: Callable[[], Any],
        *,
        view: Hashable | None = None,
        priority: int = 0,
    ) -> Future:
        """The future of `[compute()]`; the newest job of a view cancels the older ones.

        Args:
            job: to cancel it with; `compute` checks it.
            compute: what to do.
            view: of the page that asks; None is never replaced.
            priority: smaller ones are computed first.
        """
        request = _Request(object(), [None], lambda _: [compute()], priority, job, view)
        with self._changed:
            for older in (*self._waiting, *self._running):
                if view is not None and older.view == view and older.job is not None:
                    older.job.cancel()
        self._enqueue(self._waiting, request)
        return request.future

    def stream(
        self, source: StreamSource, begin: Callable[[], Any], emit: Callable[[Any], None]
    ) -> Stream:
        """Emit the pieces of the stream that `begin()` adds to a source, then `END`.

        `emit` is called in the worker's thread; it gets an exception in place of a piece too.
        """
        stream = Stream(source, begin, emit)
        self._enqueue(self._joining, stream)
        return stream

    def _enqueue(self, queue: deque[Any], item: Any) -> None:
        with self._changed:
            # requests that nobody waits for must not fill the queue
            for request in [x for x in self._waiting if x.is_cancelled]:
                self._waiting.remove(request)
                request.fail(Cancelled(CANCELLED))
            if self._is_closed:
                raise Busy(SHUTDOWN)
            if self.waiting >= self.max_waiting:
                raise Busy(
                    f"server: needs fewer than {self.max_waiting} waiting requests, got more"
                )
            queue.append(item)
            self._changed.notify()

    def stop(self) -> None:
        """End after the step in progress; what runs, waits or streams fails with `Busy`."""
        with self._changed:
            self._is_closed = True
            for request in self._running:
                if request.job is not None:
                    request.job.cancel()
            self._changed.notify()

    def close(self, timeout: float | None = None) -> None:
        """Stop, and wait for the end, at most some seconds."""
        self.stop()
        self._thread.join(timeout)

    @property
    def is_running(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._joining or self._open or self._is_closed
                )
                self._wait_for_batch()
                if self._is_closed:
                    break
                batch, joining = self._take_batch(), list[Stream]()
                while self._joining and len(self._open) + len(joining) < MAX_STREAMS:
                    joining.append(self._joining.popleft())
            if batch:
                started = time.monotonic()
                self._compute(batch)
                self._running = []
                self._window = min(MAX_WINDOW, WINDOW_SHARE * (time.monotonic() - started))
                # jobs are computed one by one: waiting for more of them would gain nothing
                self._expected = 0 if batch[0].job else len(batch) + len(self._waiting)
            self._advance(joining)
        error = Busy(SHUTDOWN)
        for request in self._waiting:
            request.fail(error)
        for stream in (*self._joining, *self._open.values()):
            stream.emit(error)

    def _wait_for_batch(self) -> None:
        """Let the clients of the last batch, which now send their next requests, join this one.

        A single client never waits, nor does anyone while there are streams.
        """
        if self._expected > 1 and not self._open and not self._joining:
            count = min(self._expected, self.max_batch)
            ready = lambda: len(self._waiting) >= count or self._joining or self._is_closed  # noqa: E731
            self._changed.wait_for(ready, self._window)
        self._expected = 0

    def _take_batch(self) -> list[_Request]:
        """The first request of the best priority, and those of its key that fit into one batch."""
        if not self._waiting:
            return []
        first = min(self._waiting, key=lambda request: request.priority)  # the oldest of equals
        batch, size = [first], len(first.inputs)
        for request in self._waiting:
            fits = request.key == first.key and size + len(request.inputs) <= self.max_batch
            if fits and request is not first:
                batch.append(request)
                size += len(request.inputs)
        for request in batch:
            self._waiting.remove(request)
        self._running = batch
        return batch

    def _compute(self, batch: list[_Request]) -> None:
        batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
        inputs = [x for request in batch for x in request.inputs]
        if not batch:
            return
        if batch[0].is_cancelled:
            batch[0].fail(Cancelled(CANCELLED))
            return
        self.batch_sizes[len(inputs)] += 1
        try:
            results = list(batch[0].compute(inputs))
        except Exception as error:
            if len(batch) == 1:
                is_stopped = self._is_closed and isinstance(error, Cancelled)
                batch[0].fail(Busy(SHUTDOWN) if is_stopped else error)
                return
            for request in batch:  # one bad input must not fail the others
                self._compute_alone(request)
            return
        for request in batch:
            count = len(request.inputs)
            request.future.set_result(results[:count])
            results = results[count:]

    def _compute_alone(self, request: _Request) -> None:
        try:
            request.future.set_result(list(request.compute(list(request.inputs))))
        except Exception as error:
            request.future.set_exception(error)

    def _advance(self, joining: list[Stream]) -> None:
        """Begin streams, end cancelled ones, and emit one piece of each."""
        for stream in joining:
            try:
                if not stream.is_cancelled:
                    self._open[stream.begin()] = stream
            except Exception as error:
                stream.emit(error)
        for handle, stream in list(self._open.items()):
            if stream.is_cancelled:
                stream.source.remove(handle)
                del self._open[handle]
        for source in {id(x.source): x.source for x in self._open.values()}.values():
            try:
                pieces = source.step()
            except Exception as error:
                for handle in [x for x, stream in self._open.items() if stream.source is source]:
                    source.remove(handle)
                    self._open.pop(handle).emit(error)
                continue
            for handle, piece in pieces:
                self._open[handle].emit(piece)
                if handle.ended:
                    self._open.pop(handle).emit(END)
