"""The HTTP API of trained runs: translate, generate, classify, transcribe."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from regard.data import Resampler
from regard.decode import Sampling, Transcriber
from regard.errors import ConfigError, RegardError
from regard.runs import Run, generate_run
from regard.web.gate import LOOPBACK, BodyTooLarge, Gate
from regard.web.server import Server
from regard.web.worker import Busy, Worker

MAX_TEXTS, MAX_CHARS, MAX_NEW_TOKENS = 64, 20_000, 4096
RETRY_SECONDS = "1"


class ApiRequest(BaseModel):
    """What every request may name: the model, if several are served."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = None


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
    seed: int | None = None
    stream: bool = False


class CompletionRequest(ApiRequest):
    """Body of POST /v1/completions, as OpenAI's clients send it."""

    model_config = ConfigDict(extra="ignore")
    prompt: str | list[str] = Field("", max_length=MAX_CHARS)
    max_tokens: int = Field(16, ge=1, le=MAX_NEW_TOKENS)
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None
    stream: bool = False


def create_app(
    runs: Mapping[str, Run],
    *,
    hosts: Sequence[str] = LOOPBACK,
    token: str | None = None,
    worker: Worker | None = None,
) -> Gate:
    """The ASGI application that serves runs by name.

    Args:
        runs: open runs by the name that requests use.
        hosts: allowed Host headers.
        token: required of every request; None requires none.
        worker: that computes; a new one by default.

    >>> app = create_app({"phrases": rg.load("phrases", device="cpu")})
    """
    server = Server(runs, worker)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        server.worker.close()

    # without FastAPI's pages, which load scripts from a CDN; /openapi.json describes the API
    app = FastAPI(
        title="Regard", version=version("regard"), lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.server = server
    _add_errors(app)
    _add_counters(app, server)
    _add_text(app, server)
    _add_files(app, server)
    _add_completions(app, server)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "ok", "models": list(server.runs), "waiting": server.worker.waiting}

    @app.get("/models")
    def models() -> dict[str, list[str]]:
        return {name: run.verbs for name, run in server.runs.items()}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        return server.metrics()

    return Gate(app, hosts=hosts, token=token)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": RETRY_SECONDS})

    @app.exception_handler(RegardError)
    async def refused(request: Request, error: RegardError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(BodyTooLarge)
    async def too_large(request: Request, error: BodyTooLarge) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 413)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"
            for problem in error.errors()
        ]
        return JSONResponse({"error": "; ".join(problems)}, 422)


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
        name, _ = server.select("translate", body.model)
        options = (name, tuple(body.to), body.beam_width, body.max_new_tokens)
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
    async def generate(body: GenerateRequest) -> Any:
        name, run = server.select("generate", body.model)
        pieces = _generate(run, body.prompt, body.max_new_tokens, body)
        if body.stream:
            events = (_event({"text": piece}) async for piece in server.pieces(pieces))
            return StreamingResponse(events, media_type="text/event-stream")
        return {"model": name, "text": "".join([x async for x in server.pieces(pieces)])}


def _generate(
    run: Run, prompt: str, max_new_tokens: int, options: GenerateRequest | CompletionRequest
) -> Iterator[str]:
    sampling = None
    if options.temperature > 0:
        seed = options.seed if options.seed is not None else time.monotonic_ns() % (1 << 31)
        sampling = Sampling(temperature=options.temperature, top_p=options.top_p, seed=seed)
    return generate_run(run, prompt, max_new_tokens=max_new_tokens, sampling=sampling)


def _event(data: Any) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"


def _add_files(app: FastAPI, server: Server) -> None:
    @app.post("/classify")
    async def classify(
        request: Request,
        model: str | None = None,
        top: Annotated[int, Query(ge=1, le=100)] = 1,
        invert: bool = False,
    ) -> dict[str, Any]:
        """The classes of the image in the body."""
        name, run = server.select("classify", model)

        def compute(paths: list[Any]) -> Sequence[Any]:
            return run.classify(paths, top=top, invert=invert)

        key = ("classify", name, top, invert)
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
        name, run = server.select("transcribe", model)

        def compute(paths: list[Any]) -> Sequence[Any]:
            return run.transcribe(paths, beam_width=beam_width)

        async with _body_file(request) as path:
            (text,) = await server.compute(("transcribe", name, beam_width), [path], compute)
        return {"model": name, "text": text}

    @app.websocket("/transcribe/stream")
    async def live(socket: WebSocket, model: str | None = None, rate: int | None = None) -> None:
        """16-bit little-endian samples in binary messages; a text message ends the stream."""
        await socket.accept()
        try:
            name, run = server.select("transcribe", model)
            transcriber = Transcriber(run.model, run.tokenizer)
            resample = None
            if rate is not None and rate != transcriber.sample_rate:
                resample = Resampler(rate, transcriber.sample_rate)

            def push(chunks: list[Any]) -> list[str]:
                waves = [torch.frombuffer(bytearray(c), dtype=torch.int16) / 32768 for c in chunks]
                return [transcriber.push(w if resample is None else resample(w)) for w in waves]

            key, pending = ("live", id(socket)), b""
            while (message := await socket.receive()).get("bytes"):
                pending += message["bytes"]
                even, pending = pending[: len(pending) // 2 * 2], pending[len(pending) // 2 * 2 :]
                (text,) = await server.compute(key, [even], push)
                await socket.send_json({"text": text, "partial": transcriber.partial_text})
            if message["type"] == "websocket.receive":
                (text,) = await server.compute(key, [None], lambda _: [transcriber.finish()])
                await socket.send_json({"text": text, "partial": ""})
                await socket.close()
        except WebSocketDisconnect:
            return
        except RegardError as error:
            await socket.send_json({"error": str(error)})
            await socket.close(1008)


@asynccontextmanager
async def _body_file(request: Request) -> AsyncIterator[Path]:
    """The body of a request as a file."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        path = Path(folder) / "upload"
        with path.open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
        yield path


def _add_completions(app: FastAPI, server: Server) -> None:
    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        names = [name for name, run in server.runs.items() if "generate" in run.verbs]
        data = [{"id": name, "object": "model", "owned_by": "regard"} for name in names]
        return {"object": "list", "data": data}

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest) -> Any:
        name, run = server.select("generate", body.model)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if not 1 <= len(prompts) <= MAX_TEXTS or (body.stream and len(prompts) > 1):
            most = 1 if body.stream else MAX_TEXTS
            raise ConfigError(f"prompt: needs 1 to {most} texts, got {len(prompts)}")
        head = {"id": f"cmpl-{time.time_ns():x}", "object": "text_completion"}
        head |= {"created": int(time.time()), "model": name}

        def choice(text: str, index: int, reason: str | None) -> dict[str, Any]:
            return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

        if body.stream:

            async def events() -> AsyncIterator[str]:
                pieces = server.pieces(_generate(run, prompts[0], body.max_tokens, body))
                async for piece in pieces:
                    yield _event(head | {"choices": [choice(piece, 0, None)]})
                yield _event(head | {"choices": [choice("", 0, "stop")]})
                yield _event("[DONE]")

            return StreamingResponse(events(), media_type="text/event-stream")
        sources = [server.pieces(_generate(run, p, body.max_tokens, body)) for p in prompts]
        texts = await asyncio.gather(*(_joined(source) for source in sources))
        lengths = [len(run.tokenizer.encode(text)) for text in texts]
        reasons = ["length" if n >= body.max_tokens else "stop" for n in lengths]
        rows = zip(texts, range(len(texts)), reasons, strict=True)
        read = sum(len(run.tokenizer.encode_input(prompt)) for prompt in prompts)
        usage = {"prompt_tokens": read, "completion_tokens": sum(lengths)}
        usage["total_tokens"] = read + sum(lengths)
        return head | {"choices": [choice(*row) for row in rows], "usage": usage}


async def _joined(pieces: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in pieces])
