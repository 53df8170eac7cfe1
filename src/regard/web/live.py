"""Live transcription over a WebSocket: samples in, text out, within limits of size and time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from torch import Tensor

from regard.errors import RegardError
from regard.runs.contents import RunContents
from regard.tasks.recognition.pipeline import TranscriptChunk, samples_to_wave
from regard.web.gate import SUBPROTOCOL
from regard.web.jobs import failure_text
from regard.web.worker import Busy, Worker

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
