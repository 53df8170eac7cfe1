"""Responses to jobs of the worker: the response, or server-sent progress until it is there."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import suppress

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from regard.errors import RegardError
from regard.web.jobs import Job, failure_text
from regard.web.worker import Busy

PATIENCE = 0.4  # seconds before progress is reported instead of waiting for the response
PROGRESS_SECONDS = 0.2  # between two reports


async def respond_with_job(
    request: Request, job: Job, future: Future, media_type: str = "application/json"
) -> Response:
    """The response, or a stream of progress where it takes long and the client can read one."""
    done = asyncio.wrap_future(future)
    left = asyncio.ensure_future(_disconnect(request))
    streams = "text/event-stream" in request.headers.get("accept", "")
    await asyncio.wait(
        (done, left), timeout=PATIENCE if streams else None, return_when=asyncio.FIRST_COMPLETED
    )
    if left.done() and not done.done():
        job.cancel()
        done.cancel()
        return Response(status_code=499)  # nobody reads it
    if done.done():
        left.cancel()
        (content,) = done.result()
        return Response(content, media_type=media_type)
    return StreamingResponse(_events(job, done, left), media_type="text/event-stream")


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(job: Job, done: asyncio.Future, left: asyncio.Future) -> AsyncIterator[bytes]:
    """Progress until the response is there; closing the connection cancels the job."""
    try:
        while not done.done():
            fraction, text = job.progress
            yield _event("progress", json.dumps({"fraction": fraction, "text": text}).encode())
            await asyncio.wait((done, left), timeout=PROGRESS_SECONDS)
            if left.done():
                return
        try:
            yield _event("response", done.result()[0])
        except RegardError as error:
            status = 503 if isinstance(error, Busy) else 400
            yield _event("error", json.dumps({"error": str(error), "status": status}).encode())
        except Exception as error:
            response = {"error": failure_text(error), "status": 500}
            yield _event("error", json.dumps(response).encode())
            raise
    finally:
        left.cancel()
        if not done.done():
            job.cancel()
            with suppress(asyncio.CancelledError):
                done.cancel()


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
