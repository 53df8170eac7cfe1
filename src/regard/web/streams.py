"""Streams of a response: begun before its status, merged, and ended when the client leaves."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from fastapi import Request, WebSocket, WebSocketDisconnect
from starlette.exceptions import HTTPException
from torch import Tensor

from regard.errors import RegardError
from regard.runs.contents import RunContents
from regard.tasks.recognition.pipeline import TranscriptChunk, samples_to_wave
from regard.web.gate import SUBPROTOCOL
from regard.web.jobs import failure_text
from regard.web.worker import Busy, Worker

END = object()  # of one of the streams that are merged


async def begun(pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The same pieces, once the first is there: an error before it has a status of its own."""
    first = await anext(pieces, END)

    async def all_pieces() -> AsyncIterator[Any]:
        try:
            if first is not END:
                yield first
            async for piece in pieces:
                yield piece
        finally:
            await close(pieces)

    return all_pieces()


async def merged(sources: Sequence[AsyncIterator[Any]]) -> AsyncIterator[tuple[int, Any]]:
    """Pieces of several streams as they come, each with the index of its stream."""
    queue = asyncio.Queue[tuple[int, Any]]()

    async def forward(index: int, source: AsyncIterator[Any]) -> None:
        try:
            async for piece in source:
                queue.put_nowait((index, piece))
        except Exception as error:
            queue.put_nowait((index, error))
        finally:
            await close(source)
            queue.put_nowait((index, END))

    tasks = [asyncio.create_task(forward(*pair)) for pair in enumerate(sources)]
    try:
        ended = 0
        while ended < len(tasks):
            index, piece = await queue.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is END:
                ended += 1
            else:
                yield index, piece
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close(pieces: AsyncIterator[Any]) -> None:
    """End a stream, which cancels what makes it."""
    await pieces.aclose()  # type: ignore[attr-defined]


async def disconnected(request: Request) -> None:
    """Return when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; a client that leaves ends it."""
    task, left = asyncio.ensure_future(answer), asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait([task, left], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "request: needs a client that waits, got a disconnect")
        return await task
    finally:
        left.cancel()
        task.cancel()


def event(data: Any) -> str:
    """A server-sent event.

    >>> event({"text": "a"})
    'data: {"text": "a"}\\n\\n'
    """
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"


MAX_MESSAGE = 1 << 20  # bytes of samples
MAX_RECORDINGS = 8  # at the same time
MAX_SECONDS, IDLE_SECONDS = 3600.0, 30.0  # of a recording, and between two of its messages


class SocketError(RegardError):
    """Ends a recording, with a close code of RFC 6455."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class LiveTranscript:
    """Text of samples that arrive one by one, as `regard transcribe -` gives it.

    A rate of None is the model's.

    >>> live = LiveTranscript(rg.load("morse", device="cpu"), rate=8000)
    >>> live.push(torch.zeros(800)).text
    ''
    >>> [chunk.is_last for chunk in live.finish()]
    [True]
    """

    def __init__(self, run: RunContents, rate: int | None):
        self._waves = deque[Tensor]()
        pipeline: Any = run.pipeline()  # of sounds: a stream has a rate
        self._chunks = pipeline.stream(self._arrived(), rate=rate, name="recording")

    def _arrived(self) -> Iterator[Tensor]:
        while self._waves:  # empty when the recording ends: `push` always adds one first
            yield self._waves.popleft()

    def push(self, samples: Tensor) -> TranscriptChunk:
        """The text that these samples decide."""
        self._waves.append(samples)
        return next(iter(self._chunks))

    def finish(self) -> list[TranscriptChunk]:
        """The rest of the text; the last chunk has the confidence."""
        return list(self._chunks)


class LiveRecordings:
    """The recordings that are being transcribed, a few at a time."""

    def __init__(self, worker: Worker):
        self.worker, self.open = worker, set[WebSocket]()

    async def transcribe(
        self, socket: WebSocket, find_run: Callable[[], Awaitable[RunContents]], rate: int | None
    ) -> None:
        """16-bit little-endian samples in binary messages; a text message ends the recording."""
        offered = socket.scope.get("subprotocols", ())
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        code, reason = 1000, ""
        try:
            if len(self.open) >= MAX_RECORDINGS:
                raise Busy(f"server: needs at most {MAX_RECORDINGS} recordings at a time, got more")
            self.open.add(socket)
            async with asyncio.timeout(MAX_SECONDS):
                await self._answer(socket, await find_run(), rate)
        except WebSocketDisconnect:
            return
        except TimeoutError:
            code, reason = 1008, f"recording: needs at most {MAX_SECONDS:.0f} seconds, got more"
        except RegardError as error:
            code = 1013 if isinstance(error, Busy) else getattr(error, "code", 1008)
            reason = str(error)
        except Exception as error:
            code, reason = 1011, failure_text(error)
            raise
        finally:
            self.open.discard(socket)
            await _end(socket, code, reason)

    async def _answer(self, socket: WebSocket, run: RunContents, rate: int | None) -> None:
        def compute(function: Any) -> asyncio.Future:
            return asyncio.wrap_future(self.worker.submit(object(), [None], lambda _: [function()]))

        (live,) = await compute(lambda: LiveTranscript(run, rate))
        pending = b""  # half a sample
        while (message := await _receive(socket)) is not None:
            content = pending + message
            if len(content) > MAX_MESSAGE:
                error = f"samples: need at most {MAX_MESSAGE} bytes per message, got more"
                raise SocketError(1009, error)
            end = len(content) // 2 * 2
            samples, pending = content[:end], content[end:]
            (chunk,) = await compute(lambda samples=samples: live.push(samples_to_wave(samples)))
            await socket.send_json(_as_dict(chunk))
        if pending:
            raise SocketError(1007, "samples: need two bytes each, got half of one at the end")
        (chunks,) = await compute(live.finish)
        for chunk in chunks:
            await socket.send_json(_as_dict(chunk))


async def _receive(socket: WebSocket) -> bytes | None:
    """The samples of the next message, None for a text."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            message = await socket.receive()
    except TimeoutError:
        rule = f"a message every {IDLE_SECONDS:.0f} seconds"
        raise SocketError(1008, f"recording: needs {rule}, got none") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    return message.get("bytes")


async def _end(socket: WebSocket, code: int, reason: str) -> None:
    try:
        if reason:
            await socket.send_json({"error": reason})
        await socket.close(code)
    except (RuntimeError, WebSocketDisconnect):  # the client has left already
        return


def _as_dict(chunk: TranscriptChunk) -> dict[str, Any]:
    return {
        "text": chunk.text,
        "partial": chunk.partial_text,
        "is_last": chunk.is_last,
        "confidence": chunk.confidence,
        "warning": chunk.warning.removeprefix("warning: "),
        "notes": list(chunk.notes),
    }
