"""Every HTTP route as a target: requests of the shape that /openapi.json describes, mutated."""

import json
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import regard as rg
from fuzz import seeds
from fuzz.mutate import Files
from fuzz.worker import Target
from regard.errors import RegardError

TRAINING = ("/explore/claims.run", "/explore/time.compare")  # train a model, whatever is sent
RUNS = ("phrases", "glyphs", "morse")
EXAMPLES: dict[str, Any] = {"texts": ["3 days"], "text": "3 days", "problem": "three-tokens"}
EXAMPLES |= {
    "claim": "A1",
    "prompt": "import ",
    "max_new_tokens": 4,
    "max_tokens": 4,
    "site": "decoder.0.cross",
}
EXAMPLES |= {"other_site": "decoder.0.cross", "answers": '{"Q": [[1]]}', "start": 0, "stop": 1}
MODELS = {"image": "glyphs", "classify": "glyphs", "sound": "morse", "transcribe": "morse"}
MODELS |= {"generate": "text", "completions": "text"}
FILES = {"/classify": lambda: seeds.picture("png"), "/transcribe": lambda: seeds.sound("wav")}
SOCKET, TILES = "/transcribe/stream", "/explore/atlas/tiles"


class Refused(RegardError):
    """A status from 400 to 499, or a busy server."""


@cache
def client() -> Any:
    """A client of a server of every task, made in the process that uses it."""
    import torch
    from starlette.testclient import TestClient

    from regard.web.api import create_app
    from regard.web.explorer import Explorer
    from regard.web.explorer.catalog import Catalog

    tokenizer = rg.data.ByteTokenizer()
    torch.manual_seed(0)
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    served = {name: rg.load(name, device="cpu") for name in RUNS}
    served["text"] = rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)
    app: Any = create_app(served, explorer=Explorer(Catalog(list(RUNS), device="cpu")))
    options: Any = {"base_url": "http://127.0.0.1", "headers": {"X-Regard": "1"}}
    options["headers"]["Content-Type"] = "application/json"
    return TestClient(app, **options).__enter__()


def targets() -> list[Target]:
    """One target per route and method."""
    found = [
        Target(
            f"{method} {path}",
            partial(send, method, path),
            cache(partial(_seeds, path, body, query)),
            needs_good_seeds=False,
        )
        for method, path, body, query in _in_a_child(_describe)
        if path not in TRAINING
    ]
    socket = cache(lambda: seeds.each("model=morse&rate=8000", seeds.sound("wav")[44:], b"\0"))
    return [*found, Target(f"WS {SOCKET}", stream, socket, needs_good_seeds=False)]


def send(method: str, path: str, folder: Path) -> None:
    """Send one request; raises `Refused`, or what the server raised."""
    parts = {file.name: file.read_bytes() for file in folder.iterdir()}
    if path == TILES and parts["?id"] == b"1":
        parts["?id"] = _atlas().encode()
    for name, value in parts.items():
        path = path.replace(f"{{{name}}}", quote_from_bytes(value[:2000], safe=""))
    query = "&".join(
        f"{name[1:]}={quote_from_bytes(value[:2000])}"
        for name, value in parts.items()
        if name[:1] == "?"
    )
    content = {"content": parts["body"]} if "body" in parts else {}
    headers = {name[1:]: value[:2000] for name, value in parts.items() if name[:1] == "@"}
    url = f"{path}?{query}" if query else path
    response = client().request(method, url, headers=headers, **content)
    _judge(response.status_code, response.text)


def stream(folder: Path) -> None:
    """Send live audio in messages of odd sizes."""
    from starlette.websockets import WebSocketDisconnect

    (file,) = folder.iterdir()
    data, at = file.read_bytes(), 0
    try:
        host = {"host": "127.0.0.1"}
        with client().websocket_connect(f"{SOCKET}?{file.name}", headers=host) as socket:
            while at < len(data) and at < 20_000:
                size = 1 + data[at] * 8
                socket.send_bytes(data[at : at + size])
                if "error" in socket.receive_json():
                    raise Refused("an error")
                at += size
            socket.send_text("")
            socket.receive_json()
    except WebSocketDisconnect as error:
        raise Refused(f"closed with {error.code}") from error


@cache
def _atlas() -> str:
    """The id of a map to look at."""
    question = {"model": "phrases", "text": "3 days"}
    return client().post("/explore/atlas", json=question).json()["id"]


def _judge(status: int, text: str) -> None:
    if 400 <= status < 500 or status == 503:
        raise Refused(text or "an empty body")
    if status >= 500:
        raise AssertionError(f"status {status}: {text[:200]}")


def _seeds(path: str, body: Any, query: list[str]) -> list[Files]:
    names = [part[1:-1] for part in path.split("/") if part[:1] == "{"]
    files = dict.fromkeys(names, b"1") | {f"?{name}": b"1" for name in query}
    if path in FILES:
        files["body"] = FILES[path]()
    elif body is not None:
        files["body"] = json.dumps(body).encode()
    if path == TILES:
        files["?tiles"] = b"0/0/0"
    return [files or {"@Accept": b"application/json"}, {"?x": b"1"} | files]


def _describe() -> list[Any]:
    """Method, path, example of a body, and names of parameters of every route."""
    described = client().get("/openapi.json").json()
    found = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema")
            definitions = described.get("components", {}).get("schemas", {})
            body = None if schema is None else _example(schema, definitions)
            if isinstance(body, dict) and "model" in _names(schema or {}, definitions):
                body["model"] = next((MODELS[x] for x in MODELS if x in path), "phrases")
            given = [x for x in operation.get("parameters", []) if x["in"] == "query"]
            query = [x["name"] for x in given if x.get("required")]
            found.append((method.upper(), path, body, query))
    return sorted(found, key=lambda x: x[:2])


def _names(schema: dict[str, Any], definitions: dict[str, Any]) -> set[str]:
    """Names of the properties of an object."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return set(schema.get("properties", {}))


def _example(schema: dict[str, Any], definitions: dict[str, Any], name: str = "") -> Any:
    """A value that fits a JSON schema, or nearly."""
    definitions = definitions | schema.get("$defs", {})
    if name in EXAMPLES:
        return EXAMPLES[name]
    if name == "to":
        return ["de"] if "array" in str(schema) else "de"
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    if "$ref" in schema:
        return _example(definitions[schema["$ref"].rpartition("/")[2]], definitions, name)
    for kind in ("anyOf", "oneOf", "allOf"):
        if kind in schema:
            return _example(schema[kind][0], definitions, name)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object":
            needed = {*schema.get("required", ()), *EXAMPLES, "to"}
            return {
                key: _example(x, definitions, key)
                for key, x in schema.get("properties", {}).items()
                if key in needed or x.get("default") is not None
            }
        case "array":
            return [_example(schema.get("items", {}), definitions)]
        case "integer" | "number":
            return int(schema.get("minimum", 1))
        case "boolean":
            return False
        case _:
            return "3 days"


def _in_a_child(compute: Callable[[], Any]) -> Any:
    """The result of a function of a process of its own, so that this one starts no threads."""
    reading, writing = os.pipe()
    if not (process := os.fork()):
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as out:
                json.dump(compute(), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(process, 0)
    return json.loads(text)
