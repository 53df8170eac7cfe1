"""What an update is made of, on its device in time: on a GPU one update's batches ahead."""

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
    """What the loop needs of data: batches without end, and where it stands among them."""

    def __iter__(self) -> Iterator[Batch]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class UpdateBatches(NamedTuple):
    """The batches of one update, their sizes, and where the data stood before and after them.

    >>> UpdateBatches([{"tokens": torch.zeros(1, 3)}], [2], {"position": 0}, {"position": 1}).sizes
    [2]
    """

    batches: list[Batch]
    sizes: list[int]
    before: dict[str, Any]
    after: dict[str, Any]
    ready_event: Any = None  # the event of their being on the GPU


class Prefetcher:
    """The batches of one update after another, moved to the device, and the place in the data.

    Sizes are taken on the host, before the move: to ask a GPU would be to wait for it. For a GPU a
    thread makes the next update's batches in pinned memory while this one's are computed.

    >>> class Ones:
    ...     position = 0
    ...     def __iter__(self):
    ...         while True:
    ...             self.position += 1
    ...             yield {"x": torch.single_row_kernels(self.position)}
    ...     def state(self): return {"position": self.position}
    ...     def restore(self, state): self.position = state["position"]
    >>> feed = Prefetcher(Ones(), lambda batch: batch["x"].sum(), batches_per_update=2, device=torch.device("cpu"))
    >>> feed.next().sizes, feed.data_state
    ([1, 2], {'position': 2})
    """

    def __init__(
        self,
        source: BatchSource,
        size: Callable[[Batch], Tensor],
        batches_per_update: int,
        device: torch.device,
    ):
        self.source, self.size, self.batches_per_update, self.device = (
            source,
            size,
            batches_per_update,
            device,
        )
        self.is_async = device.type == "cuda"
        self.data_state = source.state()
        self._made: Generator[UpdateBatches, None, None] | None = None
        self._way: Any = None  # a stream of its own for what is sent ahead

    def next(self) -> UpdateBatches:
        """One update's batches."""
        if self._made is None:
            self._made = _in_background(self._make) if self.is_async else self._make()
        try:
            fed = next(self._made)
        except StopIteration:
            self._made = None
            raise TrainError(
                f"batches: needs to be without end, got no more after {self.data_state}; try train data"
            ) from None
        self.data_state = fed.after
        return self._taken(fed)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from another place in the data."""
        self.close()
        self.source.restore(state)
        self.data_state, self._made = state, None

    def close(self) -> None:
        """End what is being made ahead; the next one asked for comes from where this one stood."""
        if self._made is not None and self.is_async:
            self._made.close()
            self.source.restore(self.data_state)
            self._made = None

    def _make(self) -> Generator[UpdateBatches, None, None]:
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
            sent, come = self._sent(batches)
            yield UpdateBatches(sent, sizes, before, after, come)

    def _sent(self, batches: list[Batch]) -> tuple[list[Batch], Any]:
        """The batches on their way to the GPU, beside its work, and the event of their coming."""
        if not self.is_async:
            return batches, None
        self._way = self._way or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._way):
            sent = [{name: self._send(x) for name, x in batch.items()} for batch in batches]
            return sent, self._way.record_event()

    def _send(self, x: Tensor) -> Tensor:
        # a batch may be made on the GPU to begin with; only what is on the host has a way to go
        return x if x.is_cuda else x.pin_memory().to(self.device, non_blocking=True)

    def _taken(self, fed: UpdateBatches) -> UpdateBatches:
        """Let the work on the GPU begin when the batches are there; the host does not wait."""
        if fed.ready_event is not None:
            here = torch.cuda.current_stream(self.device)
            here.wait_event(fed.ready_event)
            for batch in fed.batches:
                for x in batch.values():
                    x.record_stream(here)  # or its memory could be given away before it is read
        return fed


def _in_background(
    make: Callable[[], Generator[UpdateBatches, None, None]],
) -> Generator[UpdateBatches, None, None]:
    """The same, one ahead, made by a thread."""
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
            with closing(make()) as made:
                for fed in made:
                    put(fed)
                    if stop.is_set():
                        return
            put(None)
        except BaseException as error:  # it belongs to whoever asks for the next
            put(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item = _waited_for(queue, thread)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _waited_for(queue: "Queue[Any]", thread: Thread) -> Any:
    while True:
        try:
            return queue.get(timeout=1)
        except Empty:
            assert thread.is_alive(), "the thread that makes batches died without a word"
