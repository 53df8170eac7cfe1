"""HTTP of the explorer: the page, one path per query, uploads and saved pages."""

import asyncio
import json
import math
from typing import Any

import torch
from fastapi import FastAPI, Request, Response, WebSocket
from starlette.exceptions import HTTPException

from regard.errors import ConfigError
from regard.page import offline_page
from regard.runs import Run
from regard.web.explorer.atlas_routes import add_atlas_tiles
from regard.web.explorer.explorer import MAX_UPLOAD, Explorer
from regard.web.explorer.queries import Query, find_query, query_names
from regard.web.explorer.responses import respond_with_job
from regard.web.explorer.static_files import add_page
from regard.web.explorer.views.sound import sound_run
from regard.web.jobs import Job
from regard.web.live import LiveRecordings
from regard.web.worker import Worker

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
        body = await _json(request)
        query.parse(body)  # raised before it waits for the worker
        wants_csv = "text/csv" in request.headers.get("accept", "")
        if not wants_csv and (known := explorer.known_answer(query, body)) is not None:
            return Response(known, media_type="application/json")
        job = Job()

        def compute() -> bytes:
            job.report(0.0, "computing")
            torch.set_num_threads(explorer.thread_count(body))
            # queries check their job between blocks, which for a long input take seconds
            return job.run(encode) if len(str(body)) > LONG_BODY else encode()

        def encode() -> bytes:
            if wants_csv:
                return explorer.csv(query, body, job).encode()
            return explorer.answer_json(query, body, job)

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
