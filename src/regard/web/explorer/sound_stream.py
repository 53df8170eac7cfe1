"""Live transcription for the page: samples in, text out, over one WebSocket."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from torch import Tensor

from regard.errors import ConfigError, RegardError
from regard.runs.apply.transcribe import TranscribeJob, TranscriptChunk
from regard.runs.contents import RunContents
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.views.sound import sound_run
from regard.web.gate import SUBPROTOCOL
from regard.web.worker import Busy, Worker

MAX_MESSAGE = 1 << 20  # bytes of samples
MAX_RECORDINGS = 8  # at the same time


class LiveTranscript:
    """Text of samples that arrive one by one, as `regard transcribe -` gives it.

    >>> live = LiveTranscript(rg.load("morse", device="cpu"), rate=8000)
    >>> live.push(torch.zeros(800)).text
    ''
    >>> [chunk.is_last for chunk in live.finish()]
    [True]
    """

    def __init__(self, run: RunContents, rate: int):
        self._waves = deque[Tensor]()
        self._chunks = TranscribeJob(run).stream(self._arrived(), rate=rate, name="recording")

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


def add_sound_stream(app: FastAPI, explorer: Explorer, worker: Worker) -> None:
    """Add the WebSocket; the gate in front has checked host, origin and token."""
    is_open: set[WebSocket] = set()

    @app.websocket("/explore/sound/stream")
    async def stream(socket: WebSocket, model: str, rate: int) -> None:
        """16-bit little-endian samples in binary messages; a text message ends the recording."""
        offered = socket.scope.get("subprotocols", ())
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        try:
            if len(is_open) >= MAX_RECORDINGS:
                raise Busy(f"server: needs at most {MAX_RECORDINGS} recordings at a time, got more")
            is_open.add(socket)
            await _transcribe(socket, explorer, worker, model, rate)
        except WebSocketDisconnect:
            return
        except RegardError as error:
            await socket.send_json({"error": str(error)})
            await socket.close(1008)
        finally:
            is_open.discard(socket)


async def _transcribe(
    socket: WebSocket, explorer: Explorer, worker: Worker, model: str, rate: int
) -> None:
    def compute(function: Any) -> asyncio.Future:
        return asyncio.wrap_future(worker.submit(object(), [None], lambda _: [function()]))

    (live,) = await compute(lambda: LiveTranscript(sound_run(explorer, model), rate))
    pending = b""  # half a sample
    while (message := await socket.receive()).get("bytes"):
        content = pending + message["bytes"]
        if len(content) > MAX_MESSAGE:
            raise ConfigError(f"samples: need at most {MAX_MESSAGE} bytes per message, got more")
        end = len(content) // 2 * 2
        samples, pending = content[:end], content[end:]
        (chunk,) = await compute(lambda samples=samples: live.push(_to_wave(samples)))
        await socket.send_json(_as_dict(chunk))
    if message["type"] != "websocket.receive":  # the page was closed
        return
    (chunks,) = await compute(live.finish)
    for chunk in chunks:
        await socket.send_json(_as_dict(chunk))
    await socket.close()


def _to_wave(samples: bytes) -> Tensor:
    if not samples:
        return torch.zeros(0)
    return torch.frombuffer(bytearray(samples), dtype=torch.int16).float() / 32768


def _as_dict(chunk: TranscriptChunk) -> dict[str, Any]:
    return {
        "text": chunk.text,
        "partial": chunk.partial_text,
        "is_last": chunk.is_last,
        "confidence": chunk.confidence,
        "warning": chunk.warning.removeprefix("warning: "),
        "notes": list(chunk.notes),
    }
