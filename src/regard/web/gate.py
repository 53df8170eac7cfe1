"""The gate in front of the server: host, origin, token, size and time of every request."""

import asyncio
import hmac
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

MAX_BODY, MAX_JSON = 64 << 20, 8 << 20  # bytes of a file and of any other body
BODY_SECONDS, BODY_RATE = 20.0, 64 << 10  # for a body, and one second more per so many bytes
# their bodies are files, or what a page has to save
FILE_PATHS = ("/classify", "/transcribe", "/explore/upload", "/explore/offline")
PAGE_HEADER = "x-regard"  # sent by the page with every request; no other origin may add it
SUBPROTOCOL = "regard"  # of WebSockets; the page offers its token beside it, in hexadecimal
TOKEN_SUBPROTOCOL = "regard.token."
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CLOSE = (b"connection", b"close")  # where what follows may be no request
EVERY_ADDRESS = {"0.0.0.0", "::"}  # to listen on


class Gate:
    """Pure ASGI middleware, for HTTP and WebSocket alike.

    The Host header has to name this server, which stops DNS rebinding; a request that changes
    something may not come from another origin; beyond loopback a token is required; bodies are
    bounded in size and time. (Starlette's BaseHTTPMiddleware would hide disconnects and skip
    WebSockets.)

    Args:
        app: the application behind it.
        paths: that it serves runs at.
        hosts: allowed Host headers, without port. With 0.0.0.0 or ::, which listen on every address
            of the machine, every numeric address too: no DNS name can rebind to be one.
        token: required as `Authorization: Bearer …` or, since a browser cannot set headers of
            a WebSocket, as one of its subprotocols; None requires none.
        open_paths: that need no token: the code of the page, which is no secret.
    """

    def __init__(
        self,
        app: Any,
        *,
        paths: Sequence[str] = (),
        hosts: Sequence[str] = LOOPBACK,
        token: str | None = None,
        open_paths: Collection[str] = (),
    ):
        self.app, self.paths, self.open_paths = app, tuple(paths), frozenset(open_paths)
        self.hosts = {host.lower() for host in hosts}
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        limit = MAX_BODY if scope["path"] in FILE_PATHS else MAX_JSON
        if scope["type"] == "http":
            body = _Body(receive, limit)
            receive, send = body, _after(body, send)
        if refusal := self._refusal(scope, headers, limit):
            return await _refuse(scope, send, *refusal)
        return await self.app(scope, receive, send)

    def _is_own(self, name: str) -> bool:
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1] if ":" in name else ""
        if name in self.hosts:
            return True
        with suppress(ValueError):
            return bool(self.hosts & EVERY_ADDRESS and ip_address(name))
        return False

    def _refusal(self, scope: Scope, headers: dict[str, str], limit: int) -> tuple[int, str] | None:
        """Status and reason, or None if the request may pass."""
        if {"content-length", "transfer-encoding"} <= headers.keys():  # request smuggling
            return 400, "transfer-encoding: needs a request without content-length, got both"
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if not self._is_own(name.lower()):
            known = ", ".join(sorted(self.hosts))
            return 421, f"host: needs one of {known}, got {name[:80]!r}; try --host of that name"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, f"origin: needs to be this server, got {origin[:80]!r}"
        if scope["type"] == "http" and scope["path"].startswith("/explore/"):
            if scope["method"] != "GET" and PAGE_HEADER not in headers:
                return 403, f"{PAGE_HEADER}: needs this header on every request that is not a GET"
        elif self.token is not None and scope["path"] in self.open_paths:
            return None
        if self.token is not None:
            given = _given_token(scope, headers)
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return 401, "authorization: needs the server's token, got another or none"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limit:
            return 413, f"body: needs at most {limit} bytes, got {length[:20]}"
        return None


def _given_token(scope: Scope, headers: dict[str, str]) -> str:
    """The token of a request; never from its URL, which servers and proxies log."""
    if "authorization" in headers or scope["type"] != "websocket":
        return headers.get("authorization", "").removeprefix("Bearer ")
    for name in headers.get("sec-websocket-protocol", "").split(","):
        if name.strip().startswith(TOKEN_SUBPROTOCOL):
            with suppress(ValueError):
                return bytes.fromhex(name.strip().removeprefix(TOKEN_SUBPROTOCOL)).decode()
    return ""


class _Body:
    """The messages of a request, up to a number of bytes, and of seconds."""

    def __init__(self, receive: Receive, limit: int):
        self.receive, self.limit, self.size, self.is_complete = receive, limit, 0, False
        self.started = asyncio.get_running_loop().time()

    async def __call__(self) -> Message:
        if self.is_complete:  # waits for the client to leave
            return await self.receive()
        seconds = BODY_SECONDS + self.size / BODY_RATE
        try:
            async with asyncio.timeout_at(self.started + seconds):
                message = await self.receive()
        except TimeoutError:
            got = f"body: needs to be sent within {seconds:.0f} seconds, got {self.size} bytes"
            raise HTTPException(408, got) from None
        self.size += len(message.get("body", b""))
        self.is_complete = not message.get("more_body", False)
        if self.size > self.limit:
            raise HTTPException(413, f"body: needs at most {self.limit} bytes, got more")
        return message

    async def drain(self) -> None:
        """Read what the application left: closing a connection with unread data resets it."""
        end = self.size + MAX_BODY
        while not self.is_complete and self.size < end:
            try:
                await self()
            except HTTPException as error:
                if error.status_code == 408:
                    return


def _after(body: _Body, send: Send) -> Send:
    """Send, the response's start once the body is read; the last response where it is not."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            await body.drain()
            if not body.is_complete:
                message = {**message, "headers": [*message["headers"], CLOSE]}
        await send(message)

    return sent


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
        return
    body = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        CLOSE,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
