"""The served runs: chosen by name, computed by one worker, with counts of what was done."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import ConfigError, FileError, suggestion
from regard.runs import Run, load
from regard.runs.contents import files_version
from regard.tasks import Prompt, SoundFile, Text, TextPiece
from regard.web.gate import Gate
from regard.web.streams import MAX_MESSAGE
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
    first, served = f"/{task.verb}", list[str]()
    if first not in taken:
        served.append(first)
        served += [first + STREAM] if isinstance(kind, SoundFile) and task.can_stream else []
    if isinstance(kind, Prompt):
        return [*served, COMPLETIONS] if task.can_stream else served
    # what has fields of its own has a path of its own only
    return [*served, "/apply"] if isinstance(kind, Text) and kind.field == Text().field else served


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
        self.pipeline = lru_cache(MAX_PIPELINES)(lambda run, x: run.data.pipeline(run, x))
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
            self.paths[name] = [x for x in paths(run, taken) if kinds.setdefault(x, kind) == kind]

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
        got = "none" if name is None else f"{name!r}{suggestion(name, able)}"
        raise ConfigError(f"model: needs one for {path}: {known}, got {got}")

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
        numbers = {
            "uptime_seconds": f"{time.monotonic() - self.started:.1f}",
            "waiting_requests": self.worker.waiting,
            "open_streams": self.worker.streams,
            "batches_total": self.worker.batch_sizes.total(),
            "inputs_total": sum(n * k for n, k in self.worker.batch_sizes.items()),
        }
        for (path, status), count in sorted(self.requests.items()):
            numbers[f'requests_total{{path="{path}",status="{status}"}}'] = count
        for path, seconds in sorted(self.seconds.items()):
            numbers[f'request_seconds_total{{path="{path}"}}'] = f"{seconds:.4f}"
        return "".join(f"regard_{name} {value}\n" for name, value in numbers.items())


HEAD_SECONDS = 10.0  # for the head of a request, since the connection or the last answer
MAX_CONNECTIONS = 512
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 5  # in which responses may end after Ctrl-C


class HttpProtocol(H11Protocol):
    """uvicorn's protocol, which would wait forever for the rest of a request's head."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def _watch(self) -> None:
        """Wait for the rest of a head, if it is not complete."""
        waits = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if waits and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse)
        elif not waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        answer = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        self.transport.write(answer)
        self.transport.close()


def server_config(app: Gate, **options: Any) -> uvicorn.Config:
    """How uvicorn serves an application of `create_app`: with limits."""
    limits: dict[str, Any] = {
        "ws_max_size": 2 * MAX_MESSAGE,  # a message above the limit is answered with a reason
        "limit_concurrency": MAX_CONNECTIONS,
        "timeout_graceful_shutdown": STOP_SECONDS,
    }
    return uvicorn.Config(app, http=HttpProtocol, **limits | options)


def serve_app(app: Gate, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve an application of `create_app` until Ctrl-C, which answers what waits with 503.

    >>> from regard.web.api import create_app
    >>> serve_app(create_app({}))
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: runs: need one or more with a task, got none
    """
    worker = app.app.state.server.worker

    class StoppingServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # not raised again inside of the event loop, as uvicorn does: tasks would log it
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            kinds = [x for x in STOP_SIGNALS if signal.getsignal(x) is not signal.SIG_IGN]  # nohup
            before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
            try:
                yield
            finally:
                for kind, handler in before.items():
                    signal.signal(kind, handler)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.should_exit:  # a signal came meanwhile: uvicorn would leave the lifespan open
                await self.lifespan.shutdown()

        def handle_exit(self, sig: int, frame: Any) -> None:
            received.append(sig)
            worker.stop()  # streams would hold their connections open
            super().handle_exit(sig, frame)

    received: list[int] = []
    StoppingServer(server_config(app, host=host, port=port, log_level="warning")).run()
    ended = not received or received[-1] == signal.SIGINT  # Ctrl-C is the usual end
    code = 0 if ended else 128 + received[-1]
    if worker.is_running:  # a step that cannot be interrupted: nobody waits for it any more
        os._exit(code)
    if code:
        raise SystemExit(code)
