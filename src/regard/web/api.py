"""The HTTP API of trained runs: one path per verb."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, WebSocket, WebSocketException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from regard.errors import ConfigError, RegardError, suggestion
from regard.page import page_files
from regard.runs import Run, TextPiece
from regard.runs.apply.transcribe import transcribe_run_detailed
from regard.web.completions import (
    MAX_NEW_TOKENS,
    Seed,
    Text,
    add_completions,
    openai_error,
    sampling_of,
)
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.routes import add_explorer
from regard.web.gate import LOOPBACK, Gate
from regard.web.jobs import Job, failure_text
from regard.web.live import LiveRecordings
from regard.web.own_tasks import MAX_TEXTS, ApiRequest, add_own_tasks, check_lengths
from regard.web.server import Server
from regard.web.streams import begun, event, while_connected
from regard.web.temporary_file import temporary_path
from regard.web.worker import Busy, Worker

RETRY_SECONDS = "1"
CLOSE_SECONDS = 2.0  # to wait for the step in progress at a shutdown


class TranslateRequest(ApiRequest):
    """Body of POST /translate."""

    texts: list[Text] = Field(min_length=1, max_length=MAX_TEXTS)
    to: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=MAX_TEXTS)
    beam_width: int | None = Field(None, ge=1, le=16)
    max_new_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS)


class GenerateRequest(ApiRequest):
    """Body of POST /generate."""

    prompt: Text = ""
    max_new_tokens: int = Field(200, ge=1, le=MAX_NEW_TOKENS)
    temperature: float = Field(0.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: Seed = None
    stream: bool = False


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
    _add_errors(app)
    _add_counters(app, server)
    _add_text(app, server)
    recordings = LiveRecordings(server.worker)
    _add_files(app, server, recordings)
    add_completions(app, server)
    add_own_tasks(app, server)
    if explorer is not None:
        add_explorer(app, explorer, server.worker, recordings)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "models": list(server.runs), "waiting": server.worker.waiting}

    @app.get("/models")
    def models() -> dict[str, dict[str, Any]]:
        tasks = {x: None if run.recipe is None else run.data.name for x, run in server.runs.items()}
        return {x: {"task": tasks[x], "paths": server.paths[x]} for x in server.runs}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        return server.metrics()

    paths = dict.fromkeys(path for paths in server.paths.values() for path in paths)
    pages = () if explorer is None else page_files()
    return Gate(app, paths=list(paths), hosts=hosts, token=token, open_paths=pages)


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
    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return _error(request, error, 503, {"Retry-After": RETRY_SECONDS})

    @app.exception_handler(RegardError)
    async def refused(request: Request, error: RegardError) -> JSONResponse:
        return _error(request, error, 400)

    @app.exception_handler(HTTPException)  # no such path, no JSON, a body too large or slow
    async def refused_by_framework(request: Request, error: HTTPException) -> JSONResponse:
        return _error(request, error.detail, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return _error(request, failure_text(error), 500)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"
            for problem in error.errors()
        ]
        return _error(request, "; ".join(problems), 422)


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


def _add_text(app: FastAPI, server: Server) -> None:
    @app.post("/translate")
    async def translate(body: TranslateRequest) -> dict[str, Any]:
        check_lengths("texts", body.texts)
        name, run = await server.open("/translate", body.model)
        options = (run, tuple(body.to), body.beam_width, body.max_new_tokens)
        pipeline = server.pipeline(*options)
        for text in body.texts:
            if reason := pipeline.refusal(text):
                raise ConfigError(f"texts: need to fit the model, got {text[:40]!r}; {reason}")
        rows = await server.compute(("translate", *options), body.texts, pipeline.translate)
        translations = [
            {
                to: {"text": ranked[0].text, "confidence": ranked[0].confidence}
                for to, ranked in zip(pipeline.languages, row, strict=True)
            }
            for row in rows
        ]
        return {"model": name, "translations": translations}

    @app.post("/generate")
    async def generate(request: Request, body: GenerateRequest) -> Any:
        name, run = await server.open("/generate", body.model)
        sampling = sampling_of(body.temperature, body.top_p, body.seed)
        options = {"max_new_tokens": body.max_new_tokens, "sampling": sampling}
        pieces = server.generate(run, body.prompt, **options)
        if body.stream:
            return StreamingResponse(_events(await begun(pieces)), media_type="text/event-stream")

        async def join() -> str:
            return "".join([piece.text async for piece in pieces])

        return {"model": name, "text": await while_connected(request, join())}


async def _events(pieces: AsyncIterator[TextPiece]) -> AsyncIterator[str]:
    """Server-sent events; an error after the first piece, such as a shutdown, is the last one."""
    try:
        async for piece in pieces:
            if piece.text:
                yield event({"text": piece.text})
    except RegardError as error:
        yield event({"error": str(error)})


def _add_files(app: FastAPI, server: Server, recordings: LiveRecordings) -> None:
    @app.post("/classify")
    async def classify(
        request: Request,
        model: str | None = None,
        top: Annotated[int, Query(ge=1, le=100)] = 1,
        invert: bool = False,
    ) -> dict[str, Any]:
        """The classes of the image in the body."""
        name, run = await server.open("/classify", model)

        def compute(paths: list[Any]) -> Sequence[Any]:
            return run.classify(paths, top=top, invert=invert)

        key = ("classify", run, top, invert)
        async with _body_file(request) as path:
            (prediction,) = await server.compute(key, [path], compute)
        classes = [{"class": label, "probability": p} for label, p in prediction]
        return {"model": name, "classes": classes, "confidence": prediction.confidence}

    @app.post("/transcribe")
    async def transcribe(
        request: Request,
        model: str | None = None,
        beam_width: Annotated[int, Query(ge=1, le=64)] = 1,
    ) -> dict[str, Any]:
        """The text of the audio file in the body."""
        name, run = await server.open("/transcribe", model)

        def compute(paths: list[Any]) -> Sequence[Any]:
            return transcribe_run_detailed(run, paths, beam_width=beam_width)

        async with _body_file(request) as path:
            (found,) = await server.compute(("transcribe", run, beam_width), [path], compute)
        warning = found.warning.removeprefix("warning: ").replace(str(path), "body")
        answer = {"model": name, "text": found.text, "confidence": found.confidence}
        return answer | {"warning": warning}

    @app.websocket("/transcribe/stream")
    async def live(socket: WebSocket, model: str | None = None, rate: int | None = None) -> None:
        """16-bit little-endian samples in binary messages; a text message ends the stream."""

        async def find_run() -> Run:
            return (await server.open("/transcribe", model))[1]

        await recordings.transcribe(socket, find_run, rate)


@asynccontextmanager
async def _body_file(request: Request) -> AsyncIterator[Path]:
    """The body of a request as a file."""
    with temporary_path("body") as path:
        with path.open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
        yield path
