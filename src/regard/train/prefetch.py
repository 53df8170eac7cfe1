"""Batches on their device in time: for a GPU, those of the next update are prefetched."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.errors import TrainError

Batch = dict[str, Tensor]
UPDATES_AHEAD = 2  # updates whose batches the thread makes in advance


@runtime_checkable
class BatchSource(Protocol):
    """An endless iterable of batches, with a state that can be saved and restored."""

    def __iter__(self) -> Iterator[Batch]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class UpdateBatches(NamedTuple):
    """The batches of one update, their sizes, and the state of the data before and after them."""

    batches: list[Batch]
    sizes: list[int]
    before: dict[str, Any]
    after: dict[str, Any]
    ready_event: torch.Event | None = None  # recorded after the copies to the GPU


class Prefetcher:
    """Yields the batches of one update after another, on the device, and tracks the data state.

    Sizes are computed on the CPU, before the copy: to read them from a GPU would synchronise. For
    a GPU a thread makes the next updates' batches in pinned memory while this one's are computed.
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
        self._updates = self._generate()
        self._worker: ThreadPoolExecutor | None = None
        self._futures: deque[Future[UpdateBatches | None]] = deque()
        self._stream: torch.cuda.Stream | None = None  # of the copies to the GPU

    def next(self) -> UpdateBatches:
        """The batches of the next update."""
        if self.is_async:
            self._worker = self._worker or ThreadPoolExecutor(1)  # one: updates are made in order
            while len(self._futures) <= UPDATES_AHEAD:
                self._futures.append(self._worker.submit(next, self._updates, None))
            update = self._futures.popleft().result()
        else:
            update = next(self._updates, None)
        if update is None:
            raise TrainError(
                f"batches: needs to be without end, got no more after {self.data_state}; "
                f"try train data"
            )
        self.data_state = update.after
        return self._synchronize(update)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from another state of the data."""
        self.close()
        self.source.restore(state)
        self.data_state, self._updates = state, self._generate()

    def close(self) -> None:
        """End the prefetching; batches that were not taken come again."""
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
            self._futures.clear()
            self._worker, self._updates = None, self._generate()
            self.source.restore(self.data_state)

    def _generate(self) -> Iterator[UpdateBatches]:
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

    def _copy_to_device(self, batches: list[Batch]) -> tuple[list[Batch], torch.Event | None]:
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
