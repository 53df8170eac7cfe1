"""HTTP of tasks, derived from what each declares: the path of its verb, `/apply`, and streams."""

import inspect
import json
from collections.abc import AsyncIterator, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fastapi import FastAPI, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from regard.errors import ConfigError, RegardError
from regard.files.atomic import temporary_path
from regard.runs import Run
from regard.tasks import Prompt, TaskOptions, TextPiece
from regard.tasks.pipeline import plain
from regard.tasks.verb import Option, OptionError, Verb, options_of
from regard.web.server import STREAM, Server
from regard.web.streams import LiveRecordings, begun, event, while_connected

MAX_TEXTS, MAX_CHARS = 64, 20_000  # inputs of a request, and characters of each
MAX_ALL_CHARS = 64_000  # of all of them: what is computed together has a size too
MAX_VALUE_CHARS = 200  # of an option


class ApiRequest(BaseModel):
    """What every request may name: the model, if several are served."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(None, max_length=200)

    @model_validator(mode="before")
    @classmethod
    def is_text(cls, body: Any) -> Any:
        """Refuse what Python's JSON reader takes but is no JSON text: NaN and lone surrogates."""
        try:
            json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("needs Unicode text, got half of a surrogate pair") from error
        except TypeError:  # bytes of another content type, which the fields refuse
            pass
        return body


def check_lengths(name: str, texts: Sequence[str]) -> None:
    """Refuse texts that are too long, each or together, before they are tokenized.

    >>> check_lengths("texts", ["ab" * 10_000] * 4)
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: texts: need at most 64000 characters together, got 80000
    """
    longest, total = max(map(len, texts), default=0), sum(map(len, texts))
    if longest > MAX_CHARS:
        raise ConfigError(f"{name}: need at most {MAX_CHARS} characters each, got {longest}")
    if total > MAX_ALL_CHARS:
        raise ConfigError(f"{name}: need at most {MAX_ALL_CHARS} characters together, got {total}")


def add_task_routes(app: FastAPI, server: Server, recordings: LiveRecordings) -> None:
    """Add the paths of the served tasks but for those of OpenAI."""
    for path in dict.fromkeys(x for paths in server.paths.values() for x in paths):
        if path.startswith("/v1/"):
            continue
        task = type(server.select(path, None)[1].data)
        if path.endswith(STREAM):
            _add_stream(app, server, recordings, path)
        elif task.reads.is_file:
            _add_upload(app, server, path, task)
        else:
            content = {"application/json": {"schema": request_type(task).model_json_schema()}}
            extra = {"requestBody": {"content": content, "required": True}}
            _add_route(app, path, _json_endpoint(server, path), task, openapi_extra=extra)


def _json_endpoint(server: Server, path: str) -> Any:
    async def apply(request: Request) -> Response:
        body = _parse(await request.body())
        name, run = await server.open(path, body.get("model"))
        task = type(run.data)
        try:
            valid = request_type(task).model_validate(body)
        except ValidationError as error:
            problems = [{**x, "loc": ("body", *x["loc"])} for x in error.errors()]
            raise RequestValidationError(problems) from error
        options = _options(task, valid.model_dump(exclude_unset=True))
        inputs = getattr(valid, task.reads.field)
        texts = [inputs] if isinstance(inputs, str) else inputs
        check_lengths(task.reads.field, [x if isinstance(x, str) else " ".join(x) for x in texts])
        is_prompt = isinstance(task.reads, Prompt)
        if not is_prompt or not task.can_stream:
            outputs = await _compute(server, run, options, texts)
            return _respond(
                {"model": name} | (outputs[0] if is_prompt else {task.reads.outputs: outputs})
            )
        # the continuation of a prompt, as a whole or as server-sent events
        pipeline = server.pipeline(run, options)
        pieces = server.generate(run, inputs, **pipeline.stream_options())
        if valid.stream:  # type: ignore[attr-defined]
            return StreamingResponse(_events(await begun(pieces)), media_type="text/event-stream")

        async def join() -> str:
            return "".join([piece.text async for piece in pieces])

        return _respond({"model": name} | pipeline.as_json(await while_connected(request, join())))

    return apply


async def _compute(
    server: Server, run: Run, options: TaskOptions, inputs: Sequence[Any]
) -> list[Any]:
    """The outputs of inputs as JSON, computed together with waiting requests of equal options."""
    pipeline = server.pipeline(run, options)
    if not pipeline.task.reads.is_file:
        for text in filter(lambda x: isinstance(x, str), inputs):
            if reason := pipeline.refusal(text):
                name = pipeline.task.reads.field
                raise ConfigError(f"{name}: need to fit the model, got {text[:40]!r}; {reason}")
    outputs = await server.compute((run, options), inputs, pipeline)
    for output in outputs:
        if isinstance(output, RegardError):
            raise output
    return [pipeline.as_json(output) for output in outputs]


async def _events(pieces: AsyncIterator[TextPiece]) -> AsyncIterator[str]:
    """Server-sent events; an error after the first piece, such as a shutdown, is the last one."""
    try:
        async for piece in pieces:
            if piece.text:
                yield event({"text": piece.text})
    except RegardError as error:
        yield event({"error": str(error)})


def _add_upload(app: FastAPI, server: Server, path: str, task: type[Verb]) -> None:
    """A path that takes a file as its body, and the options as parameters of the URL."""

    async def apply(request: Request, model: str | None = None, **given: Any) -> Response:
        name, run = await server.open(path, model)
        options = _options(type(run.data), given)
        with temporary_path("body") as file:
            with file.open("wb") as body:
                async for chunk in request.stream():
                    body.write(chunk)
            (output,) = await _compute(server, run, options, [file])
        shown = {
            key: x.replace(str(file), "body") if isinstance(x, str) else x
            for key, x in output.items()
        }
        return _respond({"model": name} | shown)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [*inspect.signature(apply).parameters.values()][:2]
    for x in _served(task):
        hint = Annotated[_hint(x), Query(json_schema_extra=_bounds(x))]
        parameters.append(inspect.Parameter(x.name, kind, default=x.default, annotation=hint))
    apply.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    _add_route(app, path, apply, task)


def _add_route(app: FastAPI, path: str, endpoint: Any, task: type[Verb], **options: Any) -> None:
    about = task.help().partition("\n\n")[0]
    options |= {"methods": ["POST"], "name": path.strip("/"), "description": about}
    app.add_api_route(path, endpoint, response_model=None, **options)


def _add_stream(app: FastAPI, server: Server, recordings: LiveRecordings, path: str) -> None:
    @app.websocket(path)
    async def live(socket: WebSocket, model: str | None = None, rate: int | None = None) -> None:
        """16-bit little-endian samples in binary messages; a text message ends the stream."""

        async def find_run() -> Run:
            return (await server.open(path.removesuffix(STREAM), model))[1]

        await recordings.transcribe(socket, find_run, rate)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"body: needs JSON, got {type(error).__name__}") from error
    if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), str | None):
        raise ConfigError(f"body: needs a JSON object, got {str(parsed)[:40]}")
    return parsed


def _respond(answer: dict[str, Any]) -> Response:
    text = json.dumps(answer, ensure_ascii=False, default=plain)
    return Response(text, media_type="application/json")


def _options(task: type[Verb], values: dict[str, Any]) -> TaskOptions:
    """The options of a request, within the bounds of those that share the machine."""
    known = _served(task)
    options = task.Options.make("task", {x.name: values[x.name] for x in known if x.name in values})
    for x in known:
        value = getattr(options, x.name)
        if x.served is not None and value is not None and value > x.served:
            raise OptionError(f"{x.name}: needs at most {x.served:g}, got {value:g}")
    return options


def _served(task: type[Verb]) -> list[Option]:
    return [x for x in options_of(task.Options) if not x.local]


@cache
def request_type(task: type[Verb]) -> type[ApiRequest]:
    """The body of a request to a task: its inputs, and the options that it declares.

    >>> sorted(request_type(rg.tasks.LabelsTask).model_fields)
    ['inputs', 'model', 'top']
    """
    kind, fields = task.reads, dict[str, Any]()
    if isinstance(kind, Prompt):
        fields[kind.field] = (_bounded(kind.of), "")
        if task.can_stream:
            fields["stream"] = (bool, False)
    else:
        many = Field(min_length=1, max_length=MAX_TEXTS)
        fields[kind.field] = (list[_bounded(kind.of)], many)  # type: ignore[misc]
    for x in _served(task):
        default = ... if x.is_required else x.default
        fields[x.name] = (_hint(x), Field(default, json_schema_extra=_bounds(x)))
    return create_model(f"{task.__name__}Request", __base__=ApiRequest, **fields)


def _bounded(hint: Any) -> Any:
    """A type of JSON whose texts and lists have a greatest length; `check_lengths` checks texts."""
    if hint is str:
        return Annotated[str, Field(json_schema_extra={"maxLength": MAX_CHARS})]
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_bounded, get_args(hint)))]  # noqa: UP007
    if get_origin(hint) is list:
        return Annotated[list[_bounded(get_args(hint)[0])], Field(max_length=MAX_CHARS)]  # type: ignore[misc]
    return hint


def _hint(x: Option) -> Any:
    """The type of an option in a request; its bounds are checked by the options themselves."""
    hint: Any = Literal[x.choices] if x.choices else x.type
    if hint is str:
        hint = Annotated[str, Field(max_length=MAX_VALUE_CHARS)]
    if x.is_list:
        hint = Annotated[list[hint], Field(max_length=MAX_TEXTS)]
    return hint | None if x.is_optional else hint


def _bounds(x: Option) -> dict[str, Any]:
    """The bounds of an option in a schema."""
    facts = x.describe()
    known = ("minimum", "exclusiveMinimum", "maximum")
    return {"description": x.help} | {name: facts[name] for name in known if name in facts}
