"""A uvicorn in a thread, and requests written byte by byte: what a test client would tidy up."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(app: Any, port: int = 0) -> Iterator[str]:
    """The address of an application of `create_app` while a uvicorn serves it."""
    import uvicorn

    from regard.web.server import server_config

    server = uvicorn.Server(
        server_config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    app.app.state.server.worker.stop()
    server.should_exit = True
    thread.join(10)


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition, looking every few milliseconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


class Client:
    """A connection to a server, on which raw requests are sent."""

    def __init__(self, address: str):
        self.host = address.removeprefix("http://")
        name, _, port = self.host.rpartition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=20)
        self.received, self.method = b"", ""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(
        self, method: str, path: str, body: bytes | dict[str, Any] = b"", **headers: str | None
    ) -> "Client":
        """Send a request; `x_regard=None` leaves a header out, and so on."""
        self.method = method
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": self.host, "x_regard": "1", "content_length": str(len(content))} | headers
        lines = [f"{k.replace('_', '-')}: {v}" for k, v in given.items() if v is not None]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        self.socket.sendall(head.encode("latin-1") + content)
        return self

    def ask(self, query: str, body: dict[str, Any], **headers: str | None) -> "Client":
        """Send a query of the explorer."""
        return self.send("POST", f"/explore/{query}", body, **headers)

    def read_until(self, text: bytes) -> bytes:
        """What was received up to a text; all, if the server closes the connection before."""
        while text not in self.received and (piece := self.socket.recv(65536)):
            self.received += piece
        return self.received

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a response."""
        head, _, rest = self.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        length = 0 if self.method == "HEAD" else int(headers.get("content-length", 0))
        while len(rest) < length and (piece := self.socket.recv(65536)):
            rest += piece
        return int(first.split()[1]), headers, rest

    def events(self) -> list[tuple[str, Any]]:
        """The server-sent events of a response, to its end."""
        self.read_until(b"\r\n0\r\n\r\n")
        lines = self.received.decode().replace("\r\n", "\n").split("\n")
        names = [x.removeprefix("event: ") for x in lines if x.startswith("event: ")]
        data = [json.loads(x.removeprefix("data: ")) for x in lines if x.startswith("data: ")]
        return list(zip(names, data, strict=True))
