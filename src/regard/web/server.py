"""The served runs: chosen by name, computed by one worker, with counts of what was done."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from regard.errors import ConfigError, FileError, suggestion
from regard.runs import Run, load
from regard.runs.contents import files_version
from regard.tasks import Pipeline, Prompt, SoundFile, TaskOptions, Text, TextPiece
from regard.web.worker import END, Busy, Worker

COMPLETIONS, STREAM = "/v1/completions", "/stream"
MAX_PIPELINES = 32  # pipelines that are kept ready, one per combination of options


def paths(run: Run, taken: Collection[str] = ()) -> list[str]:
    """The paths that serve a run: that of its task's verb, `/apply`, and those of its streams.

    Args:
        run: a run; one without a task has no paths.
        taken: paths of something else.

    >>> paths(rg.load("phrases", device="cpu"))
    ['/translate']
    """
    if run.recipe is None:
        return []
    task, kind = run.data, run.data.reads
    first, found = f"/{task.verb}", list[str]()
    if first not in taken:
        found.append(first)
        found += [first + STREAM] if isinstance(kind, SoundFile) and task.can_stream else []
    if isinstance(kind, Prompt):
        return [*found, COMPLETIONS] if task.can_stream else found
    # what has fields of its own has a path of its own only
    return [*found, "/apply"] if isinstance(kind, Text) and kind.field == Text().field else found


class Server:
    """The served runs, their worker, and counts of what was done."""

    def __init__(
        self, runs: Mapping[str, Run], worker: Worker | None = None, *, has_page: bool = False
    ):
        if not has_page and not any(paths(run) for run in runs.values()):
            raise ConfigError(f"runs: need one or more with a task, got {' '.join(runs) or 'none'}")
        self.runs, self.worker, self.started = dict(runs), worker or Worker(), time.monotonic()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.pipeline = lru_cache(MAX_PIPELINES)(_pipeline)
        self.generator = lru_cache(None)(lambda run: run.pipeline().generator())
        self._reloading = asyncio.Lock()
        self.set_paths(())

    def set_paths(self, taken: Collection[str]) -> None:
        """Give each run its paths; one that takes other requests than an earlier run is left out.

        `taken` are the paths of something else.
        """
        kinds, self.paths, self._taken = dict[str, Any](), dict[str, list[str]](), taken
        for name, run in self.runs.items():
            reads = None if run.recipe is None else run.data.reads
            kind = type(reads), getattr(reads, "field", "")
            known = [x for x in paths(run, taken) if kinds.setdefault(x, kind) == kind]
            self.paths[name] = known

    async def open(self, path: str, name: str | None) -> tuple[str, Run]:
        """The run that `select` names, opened once more if its files changed."""
        name, run = self.select(path, name)
        if run.folder is None or run.version in (None, files_version(run.folder)):
            return name, run
        async with self._reloading:
            if run is self.runs[name]:
                device = next(run.model.parameters()).device
                try:
                    self.runs[name] = await asyncio.to_thread(load, run.folder, device=device)
                except FileError as error:
                    raise Busy(
                        f"model: needs the whole files of {name!r}, got changed ones: {error}"
                    ) from error
                self.set_paths(self._taken)
                self.pipeline.cache_clear()
                self.generator.cache_clear()
        return self.select(path, name)

    def select(self, path: str, name: str | None) -> tuple[str, Run]:
        """The run of a name, or the first that is served at the path."""
        able = {key: run for key, run in self.runs.items() if path in self.paths[key]}
        if name is None and able:
            return next(iter(able.items()))
        if name in able:
            return name, able[name]
        known = ", ".join(able) or f"none of this server's, {', '.join(self.runs)}"
        got = "none" if name is None else repr(name)
        hint = "" if name is None else suggestion(name, able)
        raise ConfigError(f"model: needs one for {path}: {known}, got {got}{hint}")

    async def compute(
        self, key: Any, inputs: Sequence[Any], compute: Callable[[list[Any]], Sequence[Any]]
    ) -> list[Any]:
        """The results of inputs, computed by the worker together with waiting equal requests."""
        return await asyncio.wrap_future(self.worker.submit(key, inputs, compute))

    async def generate(self, run: Run, prompt: str, **options: Any) -> AsyncIterator[TextPiece]:
        """The pieces of a text as the worker makes them; closing it cancels the stream."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def emit(piece: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(queue.put_nowait, piece)

        generator = self.generator(run)
        stream = self.worker.stream(generator, lambda: generator.add(prompt, **options), emit)
        try:
            while (piece := await queue.get()) is not END:
                if isinstance(piece, Exception):
                    raise piece
                if piece.text or piece.tokens or piece.finish_reason:
                    yield piece
        finally:
            stream.cancel()

    def metrics(self) -> str:
        """Counts in the text format of Prometheus."""
        lines = [
            f"regard_uptime_seconds {time.monotonic() - self.started:.1f}",
            f"regard_waiting_requests {self.worker.waiting}",
            f"regard_open_streams {self.worker.streams}",
            f"regard_batches_total {self.worker.batch_sizes.total()}",
            f"regard_inputs_total {sum(n * k for n, k in self.worker.batch_sizes.items())}",
        ]
        lines += [
            f'regard_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        lines += [
            f'regard_request_seconds_total{{path="{path}"}} {seconds:.4f}'
            for path, seconds in sorted(self.seconds.items())
        ]
        return "\n".join(lines) + "\n"


def _pipeline(run: Run, options: TaskOptions) -> Pipeline:
    return run.data.pipeline(run, options)
