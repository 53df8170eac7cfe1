"""HTTP for tasks with an `apply` of their own: the path of their verb, and `/apply`."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from functools import cache, partial
from typing import Any, get_type_hints

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from regard.errors import ConfigError
from regard.runs.apply.any_task import apply_run
from regard.tasks import Task
from regard.web.server import Server

MAX_TEXTS, MAX_CHARS = 64, 20_000  # inputs of a request, and characters of each
MAX_ALL_CHARS = 64_000  # of all of them: what is computed together has a size too


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


def add_own_tasks(app: FastAPI, server: Server) -> None:
    """Add the paths of the served tasks that have an `apply` of their own."""
    for path in dict.fromkeys(x for paths in server.paths.values() for x in paths):
        name, run = server.select(path, None)
        if "/apply" not in server.paths[name]:
            continue
        schema = request_type(type(run.data)).model_json_schema()
        content = {"application/json": {"schema": schema}}
        app.add_api_route(
            path, _endpoint(server, path), methods=["POST"], name=path.strip("/"),
            openapi_extra={"requestBody": {"content": content, "required": True}},
        )  # fmt: skip


def _endpoint(server: Server, path: str) -> Any:
    async def apply(request: Request) -> Response:
        """What the task of the run returns for the inputs, one output per input."""
        body = _parse(await request.body())
        name, run = await server.open(path, body.get("model"))
        try:
            valid = request_type(type(run.data)).model_validate(body)
        except ValidationError as error:
            problems = [{**x, "loc": ("body", *x["loc"])} for x in error.errors()]
            raise RequestValidationError(problems) from error
        options = {key: getattr(valid, key) for key in valid.model_fields_set}
        inputs: Sequence[Any] = options.pop("inputs")
        options.pop("model", None)
        check_lengths("inputs", [str(x) for x in inputs])
        key = (path, run, json.dumps(options, sort_keys=True, default=str))
        outputs = await server.compute(key, inputs, partial(apply_run, run, **options))
        answer = {"model": name, "outputs": outputs}
        text = json.dumps(answer, ensure_ascii=False, default=_plain)
        return Response(text, media_type="application/json")

    return apply


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"body: needs JSON, got {type(error).__name__}") from error
    if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), str | None):
        raise ConfigError(f"body: needs a JSON object, got {str(parsed)[:40]}")
    return parsed


@cache
def request_type(task: type[Task]) -> type[ApiRequest]:
    """The body of a request to a task: `inputs`, and the options of its `apply`, by signature.

    >>> sorted(request_type(rg.tasks.LabelsTask).model_fields)
    ['inputs', 'model', 'top']
    """
    hints, fields = get_type_hints(task.apply), dict[str, Any]()
    fields["inputs"] = (
        hints.get("inputs", list[Any]), Field(min_length=1, max_length=MAX_TEXTS)
    )  # fmt: skip
    parameters = inspect.signature(task.apply).parameters.values()
    for option in parameters:
        if option.kind is option.KEYWORD_ONLY:
            default = ... if option.default is option.empty else option.default
            fields[option.name] = (hints.get(option.name, Any), default)
    takes_any = any(option.kind is option.VAR_KEYWORD for option in parameters)
    config = ConfigDict(extra="allow" if takes_any else "forbid", arbitrary_types_allowed=True)
    base = type("TaskRequest", (ApiRequest,), {"model_config": config})
    return create_model(f"{task.__name__}Request", __base__=base, **fields)


def _plain(value: Any) -> Any:
    """An output of a task that JSON has no form for."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    to_list = getattr(value, "tolist", None)  # of tensors and arrays
    return str(value) if to_list is None else to_list()
