"""The HTTP API of trained runs: one path per verb."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from regard.decode import Sampling
from regard.errors import ConfigError, RegardError
from regard.runs import Run
from regard.runs.apply.transcribe import transcribe_run_detailed
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.routes import add_explorer
from regard.web.explorer.static_files import page_files
from regard.web.gate import LOOPBACK, Gate
from regard.web.jobs import Job, failure_text
from regard.web.live import LiveRecordings
from regard.web.own_tasks import MAX_CHARS, MAX_TEXTS, ApiRequest, add_own_tasks
from regard.web.server import Server
from regard.web.temporary_file import temporary_path
from regard.web.worker import Busy, Worker

MAX_NEW_TOKENS = 4096
Seed = Annotated[int | None, Field(ge=0, lt=1 << 62)]
RETRY_SECONDS = "1"
CLOSE_SECONDS = 2.0  # to wait for the step in progress at a shutdown


class TranslateRequest(ApiRequest):
    """Body of POST /translate."""

    texts: list[Annotated[str, Field(max_length=MAX_CHARS)]] = Field(
        min_length=1, max_length=MAX_TEXTS
    )
    to: list[str] = []
    beam_width: int | None = Field(None, ge=1, le=16)
    max_new_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS)


class GenerateRequest(ApiRequest):
    """Body of POST /generate."""

    prompt: str = Field("", max_length=MAX_CHARS)
    max_new_tokens: int = Field(200, ge=1, le=MAX_NEW_TOKENS)
    temperature: float = Field(0.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: Seed = None
    stream: bool = False


class CompletionRequest(ApiRequest):
    """Body of POST /v1/completions, as OpenAI's clients send it."""

    model_config = ConfigDict(extra="ignore")
    prompt: str | list[str] = Field("", max_length=MAX_CHARS)
    max_tokens: int = Field(16, ge=1, le=MAX_NEW_TOKENS)
    temperature: float = Field(1.0, ge=0, le=10)
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
        title="Regard", version=version("regard"), lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.server = server
    _add_errors(app)
    _add_counters(app, server)
    _add_text(app, server)
    recordings = LiveRecordings(server.worker)
    _add_files(app, server, recordings)
    _add_completions(app, server)
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
    if request.url.path.startswith("/v1/"):  # as OpenAI's clients read it
        return JSONResponse({"error": {"message": text, "code": status}}, status, headers)
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
        pieces = _generate(server, run, body.prompt, body.max_new_tokens, body)
        if body.stream:
            events = _events(await _begun(pieces), lambda piece: {"text": piece})
            return StreamingResponse(events, media_type="text/event-stream")
        (text,) = await _joined(request, [pieces])
        return {"model": name, "text": text}


def _generate(
    server: Server,
    run: Run,
    prompt: str,
    max_new_tokens: int,
    options: GenerateRequest | CompletionRequest,
) -> AsyncIterator[str]:
    sampling = None
    if options.temperature > 0:
        seed = options.seed if options.seed is not None else time.monotonic_ns() % (1 << 31)
        sampling = Sampling(temperature=options.temperature, top_p=options.top_p, seed=seed)
    return server.generate(run, prompt, max_new_tokens=max_new_tokens, sampling=sampling)


async def _begun(pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    """The same pieces, once the first is there: an error before it has a status of its own."""
    first = await anext(pieces, None)

    async def all_pieces() -> AsyncIterator[str]:
        try:
            if first is not None:
                yield first
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # cancels the stream

    return all_pieces()


async def _joined(request: Request, sources: Sequence[AsyncIterator[str]]) -> list[str]:
    """The whole texts; a client that leaves ends them."""

    async def join(pieces: AsyncIterator[str]) -> str:
        return "".join([piece async for piece in pieces])

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    texts = asyncio.gather(*(join(source) for source in sources))
    left = asyncio.ensure_future(leave())
    try:
        await asyncio.wait([texts, left], return_when=asyncio.FIRST_COMPLETED)
        if not texts.done():
            raise HTTPException(499, "request: needs a client that waits, got a disconnect")
        return await texts
    finally:
        left.cancel()
        texts.cancel()


async def _events(
    pieces: AsyncIterator[str], wrap: Callable[[str], dict[str, Any]]
) -> AsyncIterator[str]:
    """Server-sent events; an error after the first piece, such as a shutdown, is the last one."""
    try:
        async for piece in pieces:
            yield _event(wrap(piece))
    except RegardError as error:
        yield _event({"error": str(error)})


def _event(data: Any) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"


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


def _add_completions(app: FastAPI, server: Server) -> None:
    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        names = [name for name, paths in server.paths.items() if "/v1/completions" in paths]
        data = [{"id": name, "object": "model", "owned_by": "regard"} for name in names]
        return {"object": "list", "data": data}

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Any:
        name, run = await server.open("/v1/completions", body.model)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if not 1 <= len(prompts) <= MAX_TEXTS or (body.stream and len(prompts) > 1):
            most = 1 if body.stream else MAX_TEXTS
            raise ConfigError(f"prompt: needs 1 to {most} texts, got {len(prompts)}")
        head = {"id": f"cmpl-{time.time_ns():x}", "object": "text_completion"}
        head |= {"created": int(time.time()), "model": name}
        sources = [_generate(server, run, p, body.max_tokens, body) for p in prompts]

        def choice(text: str, index: int, reason: str | None) -> dict[str, Any]:
            return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

        def reason(text: str) -> str:
            return "length" if len(run.tokenizer.encode(text)) >= body.max_tokens else "stop"

        if body.stream:
            pieces = await _begun(sources[0])

            async def events() -> AsyncIterator[str]:
                text = ""

                def wrap(piece: str) -> dict[str, Any]:
                    nonlocal text
                    text += piece
                    return head | {"choices": [choice(piece, 0, None)]}

                async for event in _events(pieces, wrap):
                    yield event
                yield _event(head | {"choices": [choice("", 0, reason(text))]})
                yield _event("[DONE]")

            return StreamingResponse(events(), media_type="text/event-stream")
        texts = await _joined(request, sources)
        rows = [choice(text, n, reason(text)) for n, text in enumerate(texts)]
        read = sum(len(run.tokenizer.encode_input(prompt)) for prompt in prompts)
        written = sum(len(run.tokenizer.encode(text)) for text in texts)
        usage = {"prompt_tokens": read, "completion_tokens": written}
        return head | {"choices": rows, "usage": usage | {"total_tokens": read + written}}
