"""Streams of a response: begun before its status, merged, and ended when the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException

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


async def while_connected(request: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; a client that leaves ends it."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(answer), asyncio.ensure_future(leave())
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
