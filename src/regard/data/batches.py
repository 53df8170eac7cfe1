"""Examples to padded batches of about one size in tokens, in an order that a seed fixes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from queue import Empty, Full, Queue
from random import Random
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor

from regard.data.source import Source
from regard.data.text.phrases.facts import Split
from regard.data.text.phrases.source import Pair
from regard.data.text.tokenizers import Tokenizer
from regard.errors import ConfigError, FileError, ShapeError

Encoded = Mapping[
    str, Any
]  # a name to a list of ids, a number, or a tensor whose first axis is time


class Batches:
    """Batches of like lengths, each of at most `tokens` tokens with the padding, for one rank.

    A window of examples is encoded, sorted by length, cut into batches, and the batches are
    shuffled. All ranks walk the same list and take turns: step s of `world` ranks is batches
    s·world … s·world + world - 1, so that the global order is one, whatever the world.
    Each name that is a sequence comes padded, with its `<name>_lengths`.

    >>> numbers = rg.data.InMemorySource(test=range(1, 6))
    >>> batches = Batches(numbers, lambda n: {"x": [n] * n}, split="test", batch_tokens=6)
    >>> [batch["x"].tolist() for batch in batches]
    [[[1, 0], [2, 2]], [[5, 5, 5, 5, 5]], [[3, 3, 3]], [[4, 4, 4, 4]]]
    """

    def __init__(
        self,
        source: Source,
        encode: Callable[[Any], Encoded],
        *,
        split: Split,
        batch_tokens: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        sort_window: int = 2048,
        pad_id: int = 0,
        prefetch: int = 0,
    ):
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: needs to be from 0 to {world_size - 1}, got {rank}")
        for name, value, least in (
            ("tokens", batch_tokens, 1),
            ("window", sort_window, 1),
            ("ahead", prefetch, 0),
        ):
            if value < least:
                raise ConfigError(f"{name}: needs {least} or more, got {value}")
        self.source, self.encode = source, encode
        self.split: Split = split
        self.batch_tokens, self.seed, self.rank, self.world_size = (
            batch_tokens,
            seed,
            rank,
            world_size,
        )
        self.sort_window, self.pad_id, self.prefetch = sort_window, pad_id, prefetch
        self._position, self._taken = 0, 0  # examples before this window; its batches given out

    def state(self) -> dict[str, int]:
        """Where it stands, for all ranks together: any rank of any world can go on from here.

        >>> numbers = rg.data.InMemorySource(test=range(1, 6))
        >>> batches = Batches(numbers, lambda n: {"x": [n] * n}, split="test", batch_tokens=6)
        >>> _ = next(iter(batches))
        >>> batches.state()["taken"]
        1
        """
        held = {name: getattr(self, name) for name in ("seed", "batch_tokens", "sort_window")}
        return {**held, "position": self._position, "taken": self._taken}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on from a state: the next batch is the one that would have come."""
        names = {"seed", "batch_tokens", "sort_window", "position", "taken"}
        if set(state) != names:
            raise FileError(f"{state}: needs {', '.join(sorted(names))} of Batches.state()")
        for name in ("batch_tokens", "sort_window"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"{name}: needs to be {state[name]} as in the state, got {getattr(self, name)}"
                )
        self.seed, self._position, self._taken = state["seed"], state["position"], state["taken"]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        steps = self._steps() if not self.prefetch else _in_background(self._steps, self.prefetch)
        for batch, position, taken in steps:
            self._position, self._taken = position, taken  # of what was handed out, not made ahead
            yield batch
        self._position, self._taken = 0, 0  # a finite split starts again

    def _steps(self) -> Iterator[tuple[dict[str, Tensor], int, int]]:
        """This rank's batches, each with the state after the whole step."""
        step: list[tuple[list[Encoded], int, int]] = []
        for planned in self._plan(self._position, self._taken):
            step.append(planned)
            if len(step) == self.world_size:
                _, position, taken = step[-1]
                yield collate(step[self.rank][0], self.pad_id), position, taken
                step = []
        # the last step of a finite split may be short: ranks without a batch get none
        if self.rank < len(step):
            _, position, taken = step[-1]
            yield collate(step[self.rank][0], self.pad_id), position, taken

    def _plan(self, position: int, taken: int) -> Iterator[tuple[list[Encoded], int, int]]:
        """All batches from a state on, each with the state after it."""
        examples = self.source.examples(self.split, self.seed, position)
        while window := [self.encode(example) for example in islice(examples, self.sort_window)]:
            batches = bucket_by_length(
                [example_length(one) for one in window], self.batch_tokens, position
            )
            Random(f"{self.seed}/{position}").shuffle(batches)
            for number in range(taken, len(batches)):
                chosen = [window[i] for i in batches[number]]
                last = number + 1 == len(batches)
                after = (position + len(window), 0) if last else (position, number + 1)
                yield chosen, after[0], after[1]
            position, taken = position + len(window), 0


def example_length(encoded: Encoded) -> int:
    """How many tokens an example counts for: its longest sequence."""
    lengths = [len(value) for value in encoded.values() if _is_sequence(value)]
    return max(lengths, default=1)


def bucket_by_length(
    lengths: Sequence[int], batch_tokens: int, first_index: int = 0
) -> list[list[int]]:
    """Indices in batches of like lengths, no batch larger than `tokens` with its padding.

    >>> bucket_by_length([3, 1, 2, 4], batch_tokens=6)
    [[1, 2], [0], [3]]
    """
    if lengths and (most := max(lengths)) > batch_tokens:
        raise ShapeError(
            f"tokens: needs {most} for example {first_index + lengths.index(most)}, got {batch_tokens}; "
            f"try a larger batch, or to leave out what is so long"
        )
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # sorted: this one is the longest so far, so all are padded to its length
        if batches and (len(batches[-1]) + 1) * lengths[index] <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def batch_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices of like lengths together: the padding of a batch is that of its longest.

    >>> list(batch_by_length([3, 1, 2], batch_size=2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for at in range(0, len(order), batch_size):
        yield order[at : at + batch_size]


def collate(examples: Sequence[Encoded], pad_id: int = 0) -> dict[str, Tensor]:
    """One batch: sequences padded at their end, with their lengths; numbers in one vector.

    >>> collate([{"x": [5], "y": 1}, {"x": [6, 7], "y": 2}])
    {'x': tensor([[5, 0],
            [6, 7]]), 'x_lengths': tensor([1, 2]), 'y': tensor([1, 2])}
    """
    batch: dict[str, Tensor] = {}
    for name, first in examples[0].items():
        values = [example[name] for example in examples]
        if not _is_sequence(first):
            alike = all(isinstance(value, Tensor) for value in values)
            batch[name] = torch.stack(values) if alike else torch.tensor(values)
            continue
        rows = [torch.as_tensor(value) for value in values]
        fill = 0.0 if rows[0].is_floating_point() else pad_id
        batch[name] = torch.nn.utils.rnn.pad_sequence(rows, True, fill)
        batch[f"{name}_lengths"] = torch.tensor([len(row) for row in rows])
    return batch


def _is_sequence(value: Any) -> bool:
    """Lists of ids and tensors of frames have a time axis; a picture, of three axes, has none."""
    return isinstance(value, list) or (isinstance(value, Tensor) and 0 < value.ndim < 3)


def pair_preprocessor(tokenizer: Tokenizer) -> Callable[[Pair], Encoded]:
    """What makes a pair ready: source with its end, target from the language token to the end.

    The language is the decoder's first token, so that one encoding serves every language. The
    source is normalised as the tokenizer says, the target is written as it is.

    >>> encode = pair_preprocessor(rg.data.ByteTokenizer(("de",)))
    >>> {name: len(ids) for name, ids in encode(Pair("a", "bc", "de")).items()}
    {'source': 2, 'target': 4}
    """

    def encode(pair: Pair) -> Encoded:
        first = tokenizer.bos_id if pair.language is None else tokenizer.language_id(pair.language)
        source, target = tokenizer.encode_input(pair.source), tokenizer.encode(pair.target)
        return {
            "source": [*source, tokenizer.eos_id],
            "target": [first, *target, tokenizer.eos_id],
        }

    return encode


def _in_background(make: Callable[[], Iterator[Any]], ahead: int) -> Iterator[Any]:
    """The same items, made by a thread while the caller works; torch lets go of the lock."""
    queue: Queue[tuple[str, Any]] = Queue(ahead)
    stop = Event()

    def put(kind: str, item: Any) -> None:
        while not stop.is_set():
            try:
                queue.put((kind, item), timeout=0.1)
                return
            except Full:
                pass

    def work() -> None:
        try:
            for item in make():
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:  # it belongs to whoever asks for the next batch
            put("error", error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            kind, item = _get(queue, thread)
            if kind == "error":
                raise item
            if kind == "end":
                return
            yield item
    finally:
        stop.set()
        thread.join()


def _get(queue: Queue[tuple[str, Any]], thread: Thread) -> tuple[str, Any]:
    while True:
        try:
            return queue.get(timeout=1)
        except Empty:
            assert thread.is_alive(), "the thread that makes batches died without a word"
