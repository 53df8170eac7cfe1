"""Open maps of the atlas: one pyramid per head, within a memory limit, and their passes."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ConfigError
from regard.inspection import MapPyramid, Site
from regard.web.worker import END, Busy, Stream, Worker

MAX_MAPS, MAX_BYTES = 6, 512 << 20  # open at a time; two stay in any case, to be compared
STEP_SECONDS = 0.04  # of a pass between two requests
LOOK_SECONDS = 15.0  # after the last request about a head its pass stops


@dataclass(eq=False)
class OpenMap:
    """One head's map, how far its pass is, and when somebody last looked at it.

    >>> OpenMap("a", None, rg.make_site(*torch.zeros(2, 4, 2)), head=0).is_complete
    True
    """

    id: str
    source: Hashable  # what the site was recorded from
    site: Site
    head: int
    progress: float = 0.0
    seen: float = field(default_factory=time.monotonic)
    stream: Stream | None = None

    def __post_init__(self) -> None:
        self.pyramid = MapPyramid(self.site, self.head)
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


class MapPasses:
    """The background passes as a source of streams; only the head seen last advances.

    >>> passes, one = MapPasses(), OpenMap("a", None, rg.make_site(*torch.zeros(2, 4, 2)), 0)
    >>> handle = passes.begin(one)
    >>> passes.step()[0][1], handle.ended
    (1.0, True)
    """

    def __init__(self) -> None:
        self.running: list[_Pass] = []

    def begin(self, opened: OpenMap) -> "_Pass":
        """Begin or continue the pass of a map."""
        self.running.append(_Pass(opened))
        return self.running[-1]

    def step(self) -> list[tuple["_Pass", float]]:
        """Advance for a moment; passes that are done, or that nobody looks at, end."""
        for one in self.running:
            one.ended = time.monotonic() - one.map.seen > LOOK_SECONDS
        if live := [one for one in self.running if not one.ended]:
            max(live, key=lambda one: one.map.seen).advance(STEP_SECONDS)
        done = [one for one in self.running if one.ended]
        self.running = [one for one in self.running if not one.ended]
        return [(one, one.map.progress) for one in done]

    def remove(self, handle: "_Pass", /) -> None:
        """Stop a pass; a later one continues after its stored tiles."""
        self.running = [one for one in self.running if one is not handle]


class _Pass:
    def __init__(self, opened: OpenMap):
        self.map, self.ended = opened, False
        self.steps = opened.pyramid.advance()

    def advance(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for progress in self.steps:
            self.map.progress = progress
            if time.monotonic() > end:
                return
        self.ended = True


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
                self._close_oldest()
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
        opened.seen = time.monotonic()
        self._run_pass(opened)
        return opened

    def __len__(self) -> int:
        return len(self._maps)

    def _close_oldest(self) -> None:
        while len(self._maps) > 2 and (len(self._maps) > MAX_MAPS or self._bytes() > MAX_BYTES):
            closed = self._maps.popitem(last=False)[1]
            if closed.stream is not None:
                closed.stream.cancel()

    def _bytes(self) -> int:
        sites = {id(x.site): x.site for x in self._maps.values()}.values()
        tensors = sum(x.nbytes for s in sites for x in (s.q, s.k, s.v, s.out, s.lse))
        return tensors + sum(x.bytes for x in self._maps.values())

    def _run_pass(self, opened: OpenMap) -> None:
        if self.worker is None or opened.is_complete or opened.stream is not None:
            return

        def emit(piece: Any) -> None:
            if piece is END or isinstance(piece, Exception):
                opened.stream = None  # runs again when somebody looks

        with suppress(Busy):
            begin = lambda: self._passes.begin(opened)  # noqa: E731
            opened.stream = self.worker.stream(self._passes, begin, emit)
