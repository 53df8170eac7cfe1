"""Batches on their device in time: for a GPU, those of the next update are prefetched."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.errors import TrainError

Batch = dict[str, Tensor]


@runtime_checkable
class BatchSource(Protocol):
    """An endless iterable of batches, with a state that can be saved and restored."""

    def __iter__(self) -> Iterator[Batch]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class UpdateBatches(NamedTuple):
    """The batches of one update, their sizes, and the state of the data before and after them.

    >>> UpdateBatches([{"tokens": torch.zeros(1, 3)}], [2], {"position": 0}, {"position": 1}).sizes
    [2]
    """

    batches: list[Batch]
    sizes: list[int]
    before: dict[str, Any]
    after: dict[str, Any]
    ready_event: Any = None  # a CUDA event, recorded after the copies to the GPU


class Prefetcher:
    """Yields the batches of one update after another, on the device, and tracks the data state.

    Sizes are computed on the CPU, before the copy: to read them from a GPU would synchronise. For
    a GPU a thread makes the next update's batches in pinned memory while this one's are computed.

    >>> class Ones:
    ...     position = 0
    ...     def __iter__(self):
    ...         while True:
    ...             self.position += 1
    ...             yield {"x": torch.ones(self.position)}
    ...     def state(self): return {"position": self.position}
    ...     def restore(self, state): self.position = state["position"]
    >>> prefetcher = Prefetcher(Ones(), lambda batch: batch["x"].sum(), 2, torch.device("cpu"))
    >>> prefetcher.next().sizes, prefetcher.data_state
    ([1, 2], {'position': 2})
    """

    def __init__(
        self,
        source: BatchSource,
        size: Callable[[Batch], Tensor],
        batches_per_update: int,
        device: torch.device,
    ):
        self.source, self.size, self.device = source, size, device
        self.batches_per_update = batches_per_update
        self.is_async = device.type == "cuda"
        self.data_state = source.state()
        self._updates: Generator[UpdateBatches, None, None] | None = None
        self._stream: torch.cuda.Stream | None = None  # of the copies to the GPU

    def next(self) -> UpdateBatches:
        """The batches of the next update."""
        if self._updates is None:
            self._updates = _in_background(self._generate) if self.is_async else self._generate()
        try:
            update = next(self._updates)
        except StopIteration:
            self._updates = None
            raise TrainError(
                f"batches: needs to be without end, got no more after {self.data_state}; "
                f"try train data"
            ) from None
        self.data_state = update.after
        return self._synchronize(update)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from another state of the data."""
        self.close()
        self.source.restore(state)
        self.data_state, self._updates = state, None

    def close(self) -> None:
        """End the prefetching; batches that were not taken come again."""
        if self._updates is not None and self.is_async:
            self._updates.close()
            self.source.restore(self.data_state)
            self._updates = None

    def _generate(self) -> Generator[UpdateBatches, None, None]:
        stream = iter(self.source)
        while True:
            before, batches = self.source.state(), []
            for batch in stream:
                batches.append(batch)
                if len(batches) == self.batches_per_update:
                    break
            else:
                return
            sizes = [int(self.size(batch)) for batch in batches]
            after = self.source.state()
            copies, ready = self._copy_to_device(batches)
            yield UpdateBatches(copies, sizes, before, after, ready)

    def _copy_to_device(self, batches: list[Batch]) -> tuple[list[Batch], Any]:
        """Start the copies on a stream of their own; the event is recorded at their end."""
        if not self.is_async:
            return batches, None
        self._stream = self._stream or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._stream):
            copies = [{name: self._copy(x) for name, x in batch.items()} for batch in batches]
            return copies, self._stream.record_event()

    def _copy(self, x: Tensor) -> Tensor:
        # a batch may have been made on the GPU to begin with
        return x if x.is_cuda else x.pin_memory().to(self.device, non_blocking=True)

    def _synchronize(self, update: UpdateBatches) -> UpdateBatches:
        """Make the current stream wait for the copies; the CPU does not wait."""
        if update.ready_event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(update.ready_event)
            for batch in update.batches:
                for x in batch.values():
                    x.record_stream(current)  # else the allocator could reuse its memory too early
        return update


def _in_background(
    generate: Callable[[], Generator[UpdateBatches, None, None]],
) -> Generator[UpdateBatches, None, None]:
    """The same items, made by a thread, one ahead."""
    queue: Queue[UpdateBatches | BaseException | None] = Queue(1)
    stop = Event()

    def put(item: UpdateBatches | BaseException | None) -> None:
        while not stop.is_set():
            try:
                return queue.put(item, timeout=0.1)
            except Full:
                pass
        return None

    def work() -> None:
        try:
            with closing(generate()) as updates:
                for update in updates:
                    put(update)
                    if stop.is_set():
                        return
            put(None)
        except BaseException as error:  # raised again by the consumer
            put(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item = _get(queue, thread)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _get(queue: "Queue[Any]", thread: Thread) -> Any:
    while True:
        try:
            return queue.get(timeout=1)
        except Empty:
            assert thread.is_alive(), "the prefetch thread died without an error"
