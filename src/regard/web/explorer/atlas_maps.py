"""Open maps of the atlas with their background passes, and a synthetic map of any length."""

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ConfigError
from regard.inspection import MapPyramid, Site
from regard.ops.masks import Causal
from regard.ops.terms import make_terms
from regard.web.worker import END, Busy, Stream, Worker

PREFIX = "demo:"
MIN_LENGTH, MAX_LENGTH = 16, 1 << 18  # q and k of four heads: 128 MiB
HEADS = ("same word", "near tokens", "first token and full stops", "every period")
WORDS, CONTENT, HEAD_DIM = 64, 12, 16  # words, their features, and features of position beside them
START, STOP = 0, 1  # ids of the first token and of the full stop
LOCAL_DECAY, SHARPNESS, AMPLITUDE = 0.03, 9.0, 6.0
CHUNK = 128


def is_demo(model: str) -> bool:
    """Whether a name of a model is that of a synthetic map.

    >>> is_demo("demo:100000"), is_demo("phrases")
    (True, False)
    """
    return model.startswith(PREFIX)


def demo_length(model: str) -> int:
    """The length in the name of a synthetic map.

    >>> demo_length("demo:100000")
    100000
    """
    text = model.removeprefix(PREFIX)
    if not re.fullmatch(r"[0-9]{1,7}", text) or not MIN_LENGTH <= int(text) <= MAX_LENGTH:
        raise ConfigError(
            f"model: needs demo: and a length from {MIN_LENGTH} to {MAX_LENGTH}, "
            f"got {model[:40]!r}; try demo:100000"
        )
    return int(text)


def make_demo_site(length: int) -> Site:
    """Four causal heads over random words: equal words, near tokens, sinks, and a period.

    s_ij = T[word_i, word_j] - m (i - j), or a · cos(2π (i - j) / period)

    A score depends on two words and on the distance alone, so a row's sum has one term per word.
    There are no values: only weights are shown.

    >>> make_demo_site(100)
    synthetic: self, 4 heads, 100 queries, 100 keys
    """
    generator = torch.Generator().manual_seed(0)
    words = _draw_words(length, generator)
    vectors = torch.randn(WORDS, CONTENT, generator=generator)
    vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    q, k, lse = (torch.zeros(4, length, *x) for x in ((HEAD_DIM,), (HEAD_DIM,), ()))
    position = torch.arange(length, dtype=torch.float32)
    strength = torch.zeros(WORDS)  # of the keys that take what nothing else gets
    strength[START], strength[STOP] = math.log(length), 3.0

    for head, factor, decay in ((0, SHARPNESS, 0.0), (1, 1.0, LOCAL_DECAY), (2, 0.7, 0.0)):
        q[head, :, :CONTENT], k[head, :, :CONTENT] = factor * vectors[words], vectors[words]
        sinks = strength if head == 2 else torch.zeros(WORDS)
        q[head, :, -1], k[head, :, -1] = 1.0, sinks[words]
        q[head, :, -2], k[head, :, -2] = decay, position
        table = factor * vectors @ vectors.T + sinks
        lse[head] = (_word_lse(words, table, decay) + decay * position.double()).float()

    turn = 2 * math.pi * position.double() / demo_period(length)
    waves = torch.stack([turn.cos(), turn.sin()], -1)
    q[3, :, :2], k[3, :, :2] = AMPLITUDE * waves, waves
    lse[3] = (AMPLITUDE * turn.cos()).exp().cumsum(0).log()

    q, k, lse, empty = q[None], k[None], lse[None], torch.zeros(1, 4, length, 0)
    names = ["<start>", ".", *(a + b for a in "bdfklmnprst" for b in "aeiouy")][:WORDS]
    tokens = [[names[i] for i in words.tolist()]]
    return Site(
        name="synthetic",
        path="synthetic",
        q=q,
        k=k,
        v=empty,
        out=empty,
        lse=lse,
        terms=make_terms(q, k, mask=Causal(), scale=1.0),
        query_tokens=tokens,
        key_tokens=tokens,
    )


def demo_period(length: int) -> int:
    """The distance after which the last head repeats.

    >>> demo_period(100_000)
    2500
    """
    return max(8, length // 40)


def _draw_words(length: int, generator: torch.Generator) -> Int[Tensor, " length"]:
    """Random words by topic: passages of different length prefer different words."""
    topics = torch.rand(24, WORDS, generator=generator) ** 6 + 1e-3
    topics[:, START], topics[:, STOP] = 0.0, 0.06 * topics.sum(-1)
    cuts = (torch.rand(23, generator=generator) * length).long().sort().values.tolist()
    parts = [
        torch.multinomial(topic, end - start, replacement=True, generator=generator)
        for topic, start, end in zip(topics, [0, *cuts], [*cuts, length], strict=True)
        if end > start
    ]
    words = torch.cat(parts)
    words[0] = START
    return words


def _word_lse(
    words: Int[Tensor, " length"], table: Float[Tensor, "word other"], decay: float
) -> Float[Tensor, " length"]:
    """log Σ_j≤i exp(T[word_i, word_j] - decay · (i - j)), chunk by chunk.

    >>> _word_lse(torch.tensor([0, 1, 0]), torch.zeros(2, 2), 0.0).exp().round().tolist()
    [1.0, 2.0, 3.0]
    """
    step = torch.arange(CHUNK, dtype=torch.float64)
    within = torch.exp(-decay * (step[:, None] - step)).tril()
    kernel, carried, parts = table.double().exp(), torch.zeros(len(table)).double(), []
    for chunk in words.split(CHUNK):
        count = len(chunk)
        one_hot = torch.nn.functional.one_hot(chunk, len(table)).double()
        sums = within[:count, :count] @ one_hot  # decayed counts of each word, up to each query
        sums += torch.exp(-decay * (step[:count, None] + 1)) * carried
        parts.append((kernel[chunk] * sums).sum(-1).log())
        carried = sums[-1]
    return torch.cat(parts)


MAX_MAPS, MAX_BYTES = 6, 512 << 20  # open at a time; two stay in any case, to be compared
STEP_SECONDS = 0.04  # of a pass between two requests
LOOK_SECONDS = 15.0  # after the last request about a head its pass stops


@dataclass(eq=False)
class OpenMap:
    """One head's map, how far its pass is, and when somebody last looked at it."""

    id: str
    source: Hashable  # what the site was recorded from
    site: Site
    head: int
    progress: float = 0.0
    used_at: float = field(default_factory=time.monotonic)
    stream: Stream | None = None  # of its pass, which `ended`, and continues after stored tiles
    ended: bool = False

    def __post_init__(self) -> None:
        self.pyramid = MapPyramid(self.site, self.head)
        self.steps = self.pyramid.advance()
        if self.pyramid.base_level >= self.pyramid.levels:
            self.progress = 1.0  # every tile is computed on demand

    @property
    def is_complete(self) -> bool:
        """Whether every level is exact."""
        return self.progress >= 1.0

    @property
    def bytes(self) -> int:
        """Most bytes that the pyramid takes: features of the head, and cells of its levels."""
        pyramid = self.pyramid
        level = min(pyramid.base_level, pyramid.levels - 1)
        rows, columns = pyramid.level_shape(level)
        features = (pyramid.queries + pyramid.keys) * (self.site.q.shape[-1] + 1)
        return 4 * features + 6 * rows * columns

    def advance(self, seconds: float) -> None:
        """Go on with the pass for some time."""
        end = time.monotonic() + seconds
        for progress in self.steps:
            self.progress = progress
            if time.monotonic() > end:
                return
        self.ended = True


class MapPasses:
    """The background passes as a source of streams; only the head seen last advances.

    >>> passes, one = MapPasses(), OpenMap("a", None, rg.make_site(*torch.zeros(2, 4, 2)), 0)
    >>> passes.begin(one) is one, passes.step()[0][1], one.ended
    (True, 1.0, True)
    """

    def __init__(self) -> None:
        self.running: list[OpenMap] = []

    def begin(self, opened: OpenMap) -> OpenMap:
        """Begin or continue the pass of a map."""
        opened.ended = False
        self.running.append(opened)
        return opened

    def step(self) -> list[tuple[OpenMap, float]]:
        """Advance for a moment; passes that are done, or that nobody looks at, end."""
        for one in self.running:
            one.ended = time.monotonic() - one.used_at > LOOK_SECONDS
        if live := [one for one in self.running if not one.ended]:
            max(live, key=lambda one: one.used_at).advance(STEP_SECONDS)
        done = [one for one in self.running if one.ended]
        self.running = [one for one in self.running if not one.ended]
        return [(one, one.progress) for one in done]

    def remove(self, handle: OpenMap, /) -> None:
        """Stop a pass."""
        self.running = [one for one in self.running if one is not handle]


class OpenMaps:
    """Maps by id; the least recently used ones are closed when there are too many.

    >>> maps, site = OpenMaps(), rg.make_site(*torch.zeros(2, 4, 2))
    >>> maps.open("a", None, lambda: site, head=0) is maps.look("a")
    True
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None  # without one, nothing runs in the background
        self._maps: OrderedDict[str, OpenMap] = OrderedDict()
        self._passes, self._lock = MapPasses(), threading.Lock()

    def open(self, map_id: str, source: Hashable, load: Callable[[], Site], head: int) -> OpenMap:
        """The map of an id, opened if it is not; heads of one source share its site."""
        with self._lock:
            known = next((x for x in self._maps.values() if x.source == source), None)
            is_open = map_id in self._maps
        if not is_open:
            opened = OpenMap(map_id, source, load() if known is None else known.site, head)
            with self._lock:
                self._maps[map_id] = opened
                while len(self._maps) > 2 and self._is_full():
                    closed = self._maps.popitem(last=False)[1]
                    if closed.stream is not None:
                        closed.stream.cancel()
        return self.look(map_id)

    def look(self, map_id: str) -> OpenMap:
        """The open map of an id; its pass runs while somebody looks."""
        with self._lock:
            if map_id not in self._maps:
                raise ConfigError(
                    f"id: needs an open map, got {map_id[:40]!r}; try opening the view again"
                )
            self._maps.move_to_end(map_id)
            opened = self._maps[map_id]
        opened.used_at = time.monotonic()
        self._run_pass(opened)
        return opened

    def __len__(self) -> int:
        return len(self._maps)

    def _is_full(self) -> bool:
        sites = {id(x.site): x.site for x in self._maps.values()}.values()
        tensors = sum(x.nbytes for s in sites for x in (s.q, s.k, s.v, s.out, s.lse))
        size = tensors + sum(x.bytes for x in self._maps.values())
        return len(self._maps) > MAX_MAPS or size > MAX_BYTES

    def _run_pass(self, opened: OpenMap) -> None:
        if self.worker is None or opened.is_complete or opened.stream is not None:
            return

        def emit(piece: Any) -> None:
            if piece is END or isinstance(piece, Exception):
                opened.stream = None  # runs again when somebody looks

        with suppress(Busy):
            begin = partial(self._passes.begin, opened)
            opened.stream = self.worker.stream(self._passes, begin, emit)
