"""The sockets of the server: what a connection may take of it, and how it ends."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.web.gate import Gate
from regard.web.live import MAX_MESSAGE

HEAD_SECONDS = 10.0  # for the head of a request, since the connection or the last answer
MAX_CONNECTIONS = 512
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 5  # in which responses may end after Ctrl-C


class HttpProtocol(H11Protocol):
    """uvicorn's protocol, which would wait forever for the rest of a request's head."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Wait on, if the head is not complete yet."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._stop_timer()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse)

    def _stop_timer(self) -> None:
        if self._timer is not None:
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
