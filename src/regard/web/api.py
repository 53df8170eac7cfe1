"""The HTTP API of trained runs: one path per verb."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request, WebSocketException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection

from regard.errors import RegardError, suggestion
from regard.page import page_files
from regard.runs import Run
from regard.tasks.verb import OptionError, options_of
from regard.web.completions import add_completions, openai_error
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.routes import add_explorer
from regard.web.gate import LOOPBACK, Gate
from regard.web.jobs import Job, failure_text
from regard.web.server import Server
from regard.web.streams import LiveRecordings
from regard.web.task_routes import add_task_routes
from regard.web.worker import Busy, Worker

RETRY_SECONDS = "1"
CLOSE_SECONDS = 2.0  # to wait for the step in progress at a shutdown


def create_app(
    runs: Mapping[str, Run],
    *,
    hosts: Sequence[str] = LOOPBACK,
    token: str | None = None,
    worker: Worker | None = None,
    explorer: Explorer | None = None,
) -> Gate:
    """The ASGI application that serves runs by name, and the page of an explorer.

    Args:
        runs: open runs by the name that requests use.
        hosts: allowed Host headers; with 0.0.0.0 or :: every numeric address.
        token: required of every request; None requires none.
        worker: that computes; a new one by default.
        explorer: of the page at /; None serves no page.

    >>> app = create_app({"phrases": rg.load("phrases", device="cpu")})
    """
    server = Server(runs, worker, has_page=explorer is not None)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if explorer is not None:
            server.worker.submit_job(Job(), explorer.warm_up)
        yield
        await asyncio.to_thread(server.worker.close, CLOSE_SECONDS)

    # without FastAPI's pages, which load scripts from a CDN; /openapi.json describes the API
    app = FastAPI(
        title="Regard",
        version=version("regard"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(_known_parameters)],
    )
    app.state.server = server
    # numbers of maps as text; quickly, since most clients are on this machine
    app.add_middleware(GZipMiddleware, minimum_size=4096, compresslevel=1)
    _add_errors(app)
    _add_counters(app, server)
    recordings = LiveRecordings(server.worker)
    add_completions(app, server)
    if explorer is not None:
        add_explorer(app, explorer, server.worker, recordings)

    _add_status(app, server)
    server.set_paths({getattr(route, "path", "") for route in app.routes})
    add_task_routes(app, server, recordings)
    paths = dict.fromkeys(path for paths in server.paths.values() for path in paths)
    pages = () if explorer is None else page_files()
    return Gate(app, paths=list(paths), hosts=hosts, token=token, open_paths=pages)


def _add_status(app: FastAPI, server: Server) -> None:
    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "models": list(server.runs), "waiting": server.worker.waiting}

    @app.get("/models")
    def models() -> dict[str, dict[str, Any]]:
        """The task of each run, with its options."""
        described: dict[str, dict[str, Any]] = {}
        for name, run in server.runs.items():
            described[name] = {"task": None}
            if run.recipe is not None:
                options = [x.describe() for x in options_of(run.data.Options) if not x.local]
                facts = {"task": run.data.name, "verb": run.data.verb, "options": options}
                described[name] = facts
            described[name]["paths"] = server.paths[name]
        return described

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        return server.metrics()


def _known_parameters(connection: HTTPConnection) -> None:
    """Refuse a parameter of the URL that the route does not take, as it would be ignored."""
    known = {x.alias for x in connection.scope["route"].dependant.query_params}
    if unknown := sorted(connection.query_params.keys() - known):
        got = f"{unknown[0][:40]!r}{suggestion(unknown[0], known)}"
        error = f"parameter: needs one of {', '.join(sorted(known)) or 'none'}, got {got}"
        if connection.scope["type"] == "websocket":
            raise WebSocketException(1008, error[:120])
        raise HTTPException(422, error)


def _add_errors(app: FastAPI) -> None:
    def problem(x: dict[str, Any]) -> str:
        return f"{'.'.join(map(str, x['loc'][1:])) or 'body'}: {x['msg']}"

    responses: dict[type[Exception], Callable[[Any], tuple[Any, ...]]] = {
        Busy: lambda error: (error, 503, {"Retry-After": RETRY_SECONDS}),
        OptionError: lambda error: (error, 422),
        RegardError: lambda error: (error, 400),
        ClientDisconnect: lambda error: ("the client left before its request was whole", 499),
        # no such path, no JSON, a body too large or slow
        HTTPException: lambda error: (error.detail, error.status_code, error.headers),
        RequestValidationError: lambda error: ("; ".join(map(problem, error.errors())), 422),
        Exception: lambda error: (failure_text(error), 500),
    }
    for kind, describe in responses.items():

        async def handle(request: Request, error: Any, describe: Any = describe) -> JSONResponse:
            return _error(request, *describe(error))

        app.add_exception_handler(kind, handle)


def _error(
    request: Request, message: object, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    # a message may repeat half of a surrogate pair
    text = str(message).encode(errors="backslashreplace").decode()
    if request.url.path.startswith("/v1/"):  # which has no 422
        status = 400 if status == 422 else status
        return JSONResponse(openai_error(text, status), status, headers)
    return JSONResponse({"error": text}, status, headers)


def _add_counters(app: FastAPI, server: Server) -> None:
    class Counters:
        """Counts status and time of every HTTP request."""

        def __init__(self, app: Any):
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return await self.app(scope, receive, send)
            started, status = time.monotonic(), 500

            async def watched(message: Any) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                return await self.app(scope, receive, watched)
            finally:
                known = scope["path"] in {getattr(route, "path", "") for route in app.routes}
                path = scope["path"] if known else "other"  # bounded: anyone can invent paths
                server.requests[path, status] += 1
                server.seconds[path] += time.monotonic() - started

    app.add_middleware(Counters)
