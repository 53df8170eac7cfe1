"""HTTP of the explorer: the page, one path per query, uploads and saved pages."""

import asyncio
import gzip
import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from functools import cache, partial
from typing import Annotated, Any, Literal

import fastapi
import torch
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from regard.errors import ConfigError, RegardError
from regard.page import offline_page, page_files
from regard.runs import Run
from regard.web.explorer.explorer import MAX_UPLOAD, Explorer, Query, find_query, query_names
from regard.web.explorer.views.sound import sound_run
from regard.web.jobs import Job, failure_text
from regard.web.streams import LiveRecordings, disconnected, event
from regard.web.worker import Busy, Worker

PATIENCE = 0.4  # seconds before progress is reported instead of waiting for the response
PROGRESS_SECONDS = 0.2  # between two reports


async def respond_with_job(
    request: Request, job: Job, future: Future, media_type: str = "application/json"
) -> Response:
    """The response, or a stream of progress where it takes long and the client can read one."""
    done = asyncio.wrap_future(future)
    done.add_done_callback(lambda x: x.cancelled() or x.exception())  # also where nobody waits
    left = asyncio.ensure_future(disconnected(request))
    left.add_done_callback(lambda x: x.cancelled() or job.cancel())
    streams = "text/event-stream" in request.headers.get("accept", "")
    await asyncio.wait(
        (done, left), timeout=PATIENCE if streams else None, return_when=asyncio.FIRST_COMPLETED
    )
    if done.done():
        left.cancel()
        (content,) = done.result()
        return Response(content, media_type=media_type)
    if left.done():
        job.cancel()
        done.cancel()
        return Response(status_code=499)  # nobody reads it
    events, headers = _events(job, done, left), {}
    if "gzip" in request.headers.get("accept-encoding", ""):  # the middleware leaves streams out
        events, headers = _compress(events), {"Content-Encoding": "gzip"}
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


async def _compress(events: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """The events as gzip; each can be read as soon as it is sent."""
    stream = zlib.compressobj(1, wbits=zlib.MAX_WBITS + 16)
    async with aclosing(events):
        async for one in events:
            yield stream.compress(one) + stream.flush(zlib.Z_SYNC_FLUSH)
    yield stream.flush()


async def _events(job: Job, done: asyncio.Future, left: asyncio.Future) -> AsyncGenerator[bytes]:
    """Progress until the response is there; closing the connection cancels the job."""
    try:
        while not done.done():
            fraction, text = job.progress
            yield _event("progress", {"fraction": fraction, "text": text})
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait((done, left), timeout=PROGRESS_SECONDS, return_when=first)
            if left.done():
                return
        try:
            yield b"event: response\ndata: %s\n\n" % done.result()[0]
        except RegardError as error:
            status = 503 if isinstance(error, Busy) else 400
            yield _event("error", {"error": str(error), "status": status})
        except Exception as error:
            yield _event("error", {"error": failure_text(error), "status": 500})
            raise
    finally:
        left.cancel()
        if not done.done():
            job.cancel()
            done.cancel()


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\n{event(json.dumps(data))}".encode()


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag
}


_compressed = cache(partial(gzip.compress, mtime=0))  # of the files of the page, once


def add_page(app: FastAPI) -> None:
    """Serve the files of the page."""

    def serve(request: Request) -> Response:
        file = page_files()[request.scope["path"]]
        headers = HEADERS | {"ETag": file.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        content = file.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["Content-Encoding"] = _compressed(content), "gzip"
        return Response(content, media_type=file.content_type, headers=headers)

    for url in page_files():
        app.add_api_route(url, serve, methods=["GET", "HEAD"], include_in_schema=False)


MAX_TILES = 16  # per request
PRIORITY = -1  # somebody looks at them
IMMUTABLE = "private, max-age=31536000, immutable"


def add_atlas_tiles(app: FastAPI, explorer: Explorer, worker: Worker) -> None:
    """Add the path of tiles."""
    explorer.maps.worker = worker

    @app.get("/explore/atlas/tiles")
    async def tiles(
        request: Request,
        map_id: Annotated[str, fastapi.Query(alias="id", max_length=80)],
        tiles: Annotated[str, fastapi.Query(max_length=1000)],
        reduce: Literal["mean", "max"] = "mean",
        band: bool = False,
    ) -> Response:
        """Tiles `level/row/column`, each as its length (uint32, little-endian) and its bytes."""
        places = parse_places(tiles)
        key = hashlib.sha256(repr((map_id, reduce, band, places)).encode()).hexdigest()[:24]
        headers = {"ETag": f'"{key}"', "Cache-Control": IMMUTABLE}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)  # complete tiles never change
        job, is_complete = Job(), True

        def compute() -> bytes:
            nonlocal is_complete
            content = []
            for n, place in enumerate(places):
                job.report(n / len(places), "computing tiles")
                pyramid = explorer.maps.look(map_id).pyramid
                tile = (pyramid.band if band else pyramid.tile)(*place, reduce=reduce)
                is_complete &= tile.complete
                data = tile.to_bytes()
                content.append(struct.pack("<I", len(data)) + data)
            return b"".join(content)

        future = worker.submit_job(job, compute, priority=PRIORITY)
        response = await respond_with_job(request, job, future, "application/octet-stream")
        response.headers.update(headers if is_complete else {"Cache-Control": "no-store"})
        return response


def parse_places(text: str) -> list[tuple[int, int, int]]:
    """Levels, rows and columns of tiles.

    >>> parse_places("5/0/1,4/2/3")
    [(5, 0, 1), (4, 2, 3)]
    """
    parts = text.split(",")
    is_valid = all(re.fullmatch(r"\d{1,3}/\d{1,7}/\d{1,7}", x) for x in parts)
    if not is_valid or len(parts) > MAX_TILES:
        raise ConfigError(
            f"tiles: needs 1 to {MAX_TILES} of level/row/column, got {text[:40]!r}; try 0/0/0"
        )
    return [tuple(map(int, x.split("/"))) for x in parts]  # type: ignore[misc]  three numbers


MAX_OFFLINE_RESPONSES = 400
LONG_BODY = 2000  # characters of a request whose steps are checked at every call of torch
# a file to keep: on the origin of the server it must not be opened, its scripts are inline
SAVED_PAGE = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}


def add_explorer(
    app: FastAPI, explorer: Explorer, worker: Worker, recordings: LiveRecordings
) -> None:
    """Add the page and its queries to an application."""
    add_page(app)
    for name in query_names():
        _add_query(app, explorer, worker, find_query(name))
    add_atlas_tiles(app, explorer, worker)

    @app.websocket("/explore/sound/stream")
    async def stream(socket: WebSocket, model: str, rate: int) -> None:
        """Live transcription for the page, as `/transcribe/stream`."""

        async def find_run() -> Run:
            future = worker.submit(object(), [None], lambda _: [sound_run(explorer, model)])
            return (await asyncio.wrap_future(future))[0]

        await recordings.transcribe(socket, find_run, rate)

    @app.post("/explore/upload")
    async def upload(request: Request) -> dict[str, str]:
        """Store the file in the body; the response has its name in requests."""
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > MAX_UPLOAD:
                raise ConfigError(f"file: needs at most {MAX_UPLOAD} bytes, got more")
        return {"file": explorer.upload(bytes(content))}

    @app.post("/explore/offline")
    async def offline(request: Request) -> Response:
        """One HTML file with a view and the responses that the page has for it."""
        body = await _json(request)
        responses = body.get("responses")
        is_list = isinstance(responses, list) and all(isinstance(x, dict) for x in responses)
        if not is_list or len(responses) > MAX_OFFLINE_RESPONSES:
            raise ConfigError(
                f"responses: needs a list of at most {MAX_OFFLINE_RESPONSES} objects, got "
                "another body"
            )
        page = await asyncio.to_thread(offline_page, str(body.get("state", "")), responses)
        return Response(page, media_type="text/html", headers=SAVED_PAGE)

    @app.post("/explore/{name}", include_in_schema=False)
    async def unknown(name: str) -> Response:
        """The names that are meant, since no query has this one."""
        try:
            find_query(name)
        except ConfigError as error:
            raise HTTPException(404, str(error)) from None
        raise HTTPException(404, f"query: needs a known name, got {name[:40]!r}")


def _add_query(app: FastAPI, explorer: Explorer, worker: Worker, query: Query) -> None:
    async def respond(request: Request) -> Response:
        body, job = await _json(request), Job()
        query.parse(body)  # raised before it waits for the worker
        wants_csv = "text/csv" in request.headers.get("accept", "")
        if not wants_csv and (known := explorer.known_answer(query, body)) is not None:
            return Response(known, media_type="application/json")
        answer = explorer.csv if wants_csv else explorer.answer_json

        def compute() -> str | bytes:
            job.report(0.0, "computing")
            torch.set_num_threads(explorer.thread_count(body))
            encode = partial(answer, query, body, job)
            # queries check their job between blocks, which for a long input take seconds
            return job.run(encode) if len(str(body)) > LONG_BODY else encode()

        view = request.headers.get("x-regard-view")
        future = worker.submit_job(job, compute, view=view and view[:80], priority=query.priority)
        media_type = "text/csv" if wants_csv else "application/json"
        return await respond_with_job(request, job, future, media_type)

    schema = {"content": {"application/json": {"schema": query.request.model_json_schema()}}}
    app.add_api_route(
        f"/explore/{query.name}",
        respond,
        methods=["POST"],
        summary=(query.compute.__doc__ or query.name).strip().splitlines()[0],
        openapi_extra={"requestBody": schema | {"required": True}},
    )


async def _json(request: Request) -> Any:
    try:
        content = await request.body()
        body = json.loads(content, parse_float=_finite_float, parse_constant=_finite_float)
    except (ValueError, RecursionError):
        raise ConfigError("body: needs JSON, got something else") from None
    if not isinstance(body, dict):
        raise ConfigError(f"body: needs an object, got {type(body).__name__}")
    return body


def _finite_float(text: str) -> float:
    """A number of JSON, which has no NaN and no infinity, whatever Python's reader allows."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number
