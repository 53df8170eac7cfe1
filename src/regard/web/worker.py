"""One thread that runs the models: waiting requests are batched, streams take turns."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from regard.errors import RegardError

MAX_WAITING = 256  # requests; more are refused with 503
MAX_BATCH = 32  # inputs that are computed together
MAX_STREAMS = 16  # at once, each in turn


class Busy(RegardError):
    """The queue is full; the caller should try again later."""


@dataclass
class _Request:
    key: Hashable  # requests with equal keys can be computed as one batch
    inputs: Sequence[Any]
    compute: Callable[[list[Any]], Sequence[Any]]
    future: Future = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Stream:
    """A stream that the worker advances in turn with others; `cancel` ends it early.

    >>> Stream(iter("ab"), print).is_cancelled
    False
    """

    def __init__(self, pieces: Iterator[Any], emit: Callable[[Any], None]):
        self.pieces, self.emit, self.is_cancelled = pieces, emit, False

    def cancel(self) -> None:
        """Stop before the next piece."""
        self.is_cancelled = True


END = object()  # emitted after the last piece of a stream


class Worker:
    """Runs models in one thread, since torch uses all cores for one call.

    Waiting requests with the same key are computed as one batch; between two batches each open
    stream advances by one piece, so that a long generation does not block short requests.

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
        self._streams: deque[Stream] = deque()
        self._changed, self._is_closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="regard-worker", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._waiting)

    @property
    def streams(self) -> int:
        """Open streams."""
        return len(self._streams)

    def submit(
        self, key: Hashable, inputs: Sequence[Any], compute: Callable[[list[Any]], Sequence[Any]]
    ) -> Future:
        """The future of `compute(inputs)`, possibly computed in one call with equal requests."""
        request = _Request(key, inputs, compute)
        with self._changed:
            if self._is_closed or len(self._waiting) >= self.max_waiting:
                raise Busy(
                    f"server: needs fewer than {self.max_waiting} waiting requests, got more"
                )
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def stream(self, pieces: Iterator[Any], emit: Callable[[Any], None]) -> Stream:
        """Emit the pieces one by one, then `END`; an exception of the iterator is emitted too."""
        stream = Stream(pieces, emit)
        with self._changed:
            if self._is_closed or len(self._streams) >= MAX_STREAMS:
                raise Busy(f"server: needs at most {MAX_STREAMS} open streams, got more")
            self._streams.append(stream)
            self._changed.notify()
        return stream

    def close(self) -> None:
        """Stop after the call in progress; waiting requests fail with `Busy`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._streams or self._is_closed)
                if self._is_closed:
                    break
                batch = self._take_batch()
                stream = self._streams.popleft() if self._streams else None
            if batch:
                self._compute(batch)
            if stream is not None and self._advance(stream):
                with self._changed:
                    self._streams.append(stream)
        for request in self._waiting:
            request.future.set_exception(Busy("server: needs to be running, got a shutdown"))

    def _take_batch(self) -> list[_Request]:
        """The first waiting request, and those of the same key that fit into one batch."""
        batch, size, others = list[_Request](), 0, deque[_Request]()
        for request in self._waiting:
            fits = not batch or size + len(request.inputs) <= self.max_batch
            if (not batch or request.key == batch[0].key) and fits:
                batch.append(request)
                size += len(request.inputs)
            else:
                others.append(request)
        self._waiting = others
        return batch

    def _compute(self, batch: list[_Request]) -> None:
        batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
        inputs = [x for request in batch for x in request.inputs]
        if not batch:
            return
        self.batch_sizes[len(inputs)] += 1
        try:
            results = list(batch[0].compute(inputs))
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
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

    def _advance(self, stream: Stream) -> bool:
        """Emit one piece; False at the end."""
        if stream.is_cancelled:
            return False
        try:
            piece = next(stream.pieces, END)
        except Exception as error:
            stream.emit(error)
            piece = END
        stream.emit(piece)
        return piece is not END
