"""The API returns what the library returns, batches what waits, and refuses what is not for it."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image, ImageDraw, ImageFont
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import regard as rg
from regard.tasks import TaskOptions, Text, option
from regard.tasks.registry import TASKS
from regard.web.api import create_app
from regard.web.explorer import Explorer
from regard.web.explorer.catalog import Catalog
from regard.web.worker import END, Busy, Worker


def server_generator(app):
    """The generator of the run `text`."""
    server = app.app.state.server
    return server.generator(server.runs["text"])


def text_run():
    tokenizer = rg.data.ByteTokenizer()
    torch.manual_seed(0)
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    return rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Reverse(TASKS["text"]):
    """A custom task with an option."""

    verb: ClassVar[str] = "reverse"
    reads: ClassVar[Text] = Text()
    can_stream: ClassVar[bool] = False

    class Options(TaskOptions):
        """Write texts backwards."""

        upper: bool = option(default=False, help="In capitals.")

    def apply(self, run, inputs, options):
        self.calls.append(len(inputs))
        return [Pair(x, (x.upper() if options.upper else x)[::-1]) for x in inputs]

    calls: ClassVar[list[int]] = []


@dataclass
class Pair:
    before: str
    after: str


def own_runs():
    tokenizer = rg.data.ByteTokenizer()
    runs = {}
    for name, pooling in (("labels", "mean"), ("tags", "none")):
        config = rg.models.classifier_tiny(vocab=tokenizer.vocab, classes=3, pooling=pooling)
        kind = rg.tasks.find_task("labels" if name == "labels" else "tagging")
        more = {"word_split": "edges"} if name == "tags" else {}
        data = kind(train="none.csv", names=("O", "B-A", "I-A"), **more)
        recipe = rg.tasks.Recipe(
            name=name, data=data, model=config, train=rg.train.TrainConfig(steps=1)
        )
        runs[name] = rg.Run(None, recipe, rg.models.Classifier(config).eval(), tokenizer)
    recipe = rg.tasks.recipe("stdlib")
    data = Reverse(folder="nowhere")
    return runs | {"own": rg.Run(None, replace(recipe, data=data), None, tokenizer)}


@pytest.fixture(scope="module")
def client():
    torch.set_num_threads(1)
    names = ("phrases", "glyphs", "morse")
    runs = {name: rg.load(name, device="cpu") for name in names} | {"text": text_run()}
    runs |= own_runs()
    options = {"base_url": "http://127.0.0.1", "raise_server_exceptions": False}
    with TestClient(create_app(runs), **options) as client:
        client.runs = runs
        yield client


def test_translations_are_those_of_the_library(client):
    texts = ["3 days", "5 November 2026"]
    answer = client.post("/translate", json={"texts": texts, "to": ["de", "fr"]}).json()
    expected = client.runs["phrases"].translate(texts, to=["de", "fr"])
    for to in ("de", "fr"):
        assert [row[to]["text"] for row in answer["translations"]] == expected[to]
    assert 0 < answer["translations"][0]["de"]["confidence"] <= 1


@contextmanager
def worker_blocked(client):
    """Requests wait until the block ends, or `wait_together` lets them go."""
    worker, release = client.app.app.state.server.worker, threading.Event()
    taken = threading.Event()
    worker.submit("block", [0], lambda inputs: (taken.set(), [release.wait(30)])[1])
    assert taken.wait(30)
    client.release = release
    yield worker
    release.set()


def wait_together(client, send, values):
    worker = client.app.app.state.server.worker
    with ThreadPoolExecutor(len(values)) as pool:
        answers = [pool.submit(send, value) for value in values]
        for _ in range(600):
            if worker.waiting == len(values):
                break
            time.sleep(0.05)
        client.release.set()
        return [answer.result() for answer in answers]


def test_requests_that_wait_are_batched(client):
    with worker_blocked(client) as worker:
        before = worker.batch_sizes.copy()

        def send(n):
            return client.post("/translate", json={"texts": [f"{n} days"], "to": ["de"]}).json()

        answers = wait_together(client, send, range(2, 10))
    assert (worker.batch_sizes - before)[8] == 1
    texts = sorted(answer["translations"][0]["de"]["text"] for answer in answers)
    assert texts == sorted(f"{n} Tage" for n in range(2, 10))


def test_texts_are_generated_together(client):
    prompts = ["import ", "x", "def f(x):"]
    with worker_blocked(client):
        generator, sizes = server_generator(client.app), []
        step = generator.step
        generator.step = lambda: (sizes.append(len(generator)), step())[1]
        send = lambda p: client.post("/generate", json={"prompt": p, "max_new_tokens": 9})  # noqa: E731
        answers = wait_together(client, send, prompts)
        generator.step = step
    assert sizes == [3] * 9
    expected = [client.runs["text"].generate(prompt, max_new_tokens=9) for prompt in prompts]
    assert [answer.json()["text"] for answer in answers] == expected


def test_an_image_is_classified(client, tmp_path):
    image = Image.new("L", (64, 64), 255)
    ImageDraw.Draw(image).text((20, 10), "K", 0, ImageFont.load_default(40))
    file = tmp_path / "k.png"
    image.save(file)
    answer = client.post("/classify?top=3", content=file.read_bytes()).json()
    (expected,) = client.runs["glyphs"].classify([file], top=3)
    assert [(c["class"], c["probability"]) for c in answer["classes"]] == list(expected)
    assert answer["confidence"] == expected.confidence


def keyed(text, rate):
    down, _ = rg.data.key_text(text, wpm=20, rate=rate)
    tone = rg.data.keyed_tone(down, 600, rate)
    return np.concatenate([np.zeros(rate // 2), 0.5 * tone, np.zeros(rate)])


def test_audio_is_transcribed_as_a_file_and_live(client, tmp_path):
    file = tmp_path / "a.wav"
    soundfile.write(file, keyed("PARIS PARIS", 8000), 8000)
    text = client.post("/transcribe", content=file.read_bytes()).json()["text"]
    assert [text] == client.runs["morse"].transcribe([file])
    assert "PARIS" in text
    samples = (keyed("PARIS PARIS", 16000) * 32767).astype("<i2").tobytes()
    with client.websocket_connect("ws://127.0.0.1/transcribe/stream?rate=16000") as socket:
        parts = []
        for at in range(0, len(samples), 12801):  # odd: samples are cut between messages
            socket.send_bytes(samples[at : at + 12801])
            parts.append(socket.receive_json()["text"])
        socket.send_text("end")
        parts.append(socket.receive_json()["text"])
    assert "PARIS" in "".join(parts)


def test_text_is_generated_whole_and_in_pieces(client):
    body = {"prompt": "import ", "max_new_tokens": 12}
    whole = client.post("/generate", json=body).json()["text"]
    assert whole == client.runs["text"].generate("import ", max_new_tokens=12)
    with client.stream("POST", "/generate", json=body | {"stream": True}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    assert "".join(event["text"] for event in events) == whole
    again = [
        client.post("/generate", json=body | {"temperature": 1.0, "seed": 3}).json()["text"]
        for _ in range(2)
    ]
    assert again[0] == again[1] != whole


def test_every_task_has_a_path(client):
    paths = {name: model["paths"] for name, model in client.get("/models").json().items()}
    assert paths["phrases"] == ["/translate"]
    assert paths["text"] == ["/generate", "/v1/completions"]
    assert paths["tags"] == ["/tag", "/apply"]
    texts = ["a good day", "b"]
    labels = client.post("/label", json={"inputs": texts, "top": 2}).json()["outputs"]
    expected = client.runs["labels"].apply(texts, top=2)
    for row, other in zip(labels, expected, strict=True):
        assert [name for name, _ in row] == [name for name, _ in other]
        assert [p for _, p in row] == pytest.approx([p for _, p in other], abs=1e-5)
    for path, model in (("/tag", None), ("/apply", "tags")):
        tags = client.post(path, json={"inputs": texts, "model": model}).json()["outputs"]
        assert tags == [[list(pair) for pair in row] for row in client.runs["tags"].apply(texts)]
    body = {"inputs": ["a --b.", ["a", "b c"]], "word_split": "spaces"}
    given = client.post("/tag", json=body).json()["outputs"]
    assert [[word for word, _ in row] for row in given] == [["a", "--b."], ["a", "b c"]]
    assert client.post("/tag", json=body | {"word_split": "no"}).status_code == 422
    assert client.get("/openapi.json").json()["paths"]["/label"]["post"]["requestBody"]


def test_a_task_of_your_own_is_served_and_batched(client):
    body = {"inputs": ["abc"], "upper": True}
    answer = client.post("/reverse", json=body).json()
    assert answer == {"model": "own", "outputs": [{"before": "abc", "after": "CBA"}]}
    assert client.post("/apply", json={"inputs": ["ab"], "model": "own"}).status_code == 200
    Reverse.calls.clear()
    with worker_blocked(client):
        send = lambda n: client.post("/reverse", json={"inputs": [f"{n}"] * n})  # noqa: E731
        answers = wait_together(client, send, [1, 2, 3])
    assert Reverse.calls == [6]
    assert sorted(len(x.json()["outputs"]) for x in answers) == [1, 2, 3]


def test_completions_as_openai_clients_ask_for_them(client):
    assert [m["id"] for m in client.get("/v1/models").json()["data"]] == ["text"]
    body = {"model": "text", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0, "user": "me"}
    answer = client.post("/v1/completions", json=body).json()
    assert answer["object"] == "text_completion"
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    expected = client.runs["text"].generate("b", max_new_tokens=5)
    assert answer["choices"][1]["text"] == expected
    assert answer["usage"]["total_tokens"] == 2 + answer["usage"]["completion_tokens"]
    body |= {"prompt": "b", "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        *events, last = [line[6:] for line in answer.iter_lines() if line]
    assert last == "[DONE]"
    refused = client.post("/v1/completions", json={"model": "no"}).json()["error"]
    assert refused["message"].startswith("model: needs one for /v1/completions: text, got 'no'")
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == expected


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/translate", {"texts": ["3 days"]}, 400, "to: needs one or more of"),
        ("/translate", {"texts": ["3 days"], "to": ["ed"]}, 400, "pl pt tr, got 'ed'"),
        ("/translate", {"texts": []}, 422, "texts: "),
        ("/translate", {"texts": ["x"], "too": ["de"]}, 422, "too: "),
        ("/translate", {"texts": [" "], "to": ["de"]}, 400, "it needs words"),
        ("/translate", {"texts": ["x"], "model": "morse"}, 400, "model: needs one for /translate"),
        ("/translate", {"texts": ["\ud800"], "to": ["de"]}, 422, "half of a surrogate pair"),
        ("/generate", {"seed": -1}, 422, "seed: "),
        ("/nowhere", {}, 404, "Not Found"),
        ("/label", {"inputs": "good"}, 422, "inputs: "),
        ("/label", {"inputs": ["good"], "top": 0}, 422, "top: needs 1 or more, got 0"),
        ("/label", {"inputs": ["good"], "topp": 1}, 422, "topp: "),
        ("/label", {"inputs": ["x" * 20_001]}, 400, "inputs: need at most 20000 characters each"),
        ("/label", {"inputs": ["x" * 20_000] * 4}, 400, "64000 characters together, got 80000"),
        ("/translate", {"texts": ["x" * 20_000] * 4, "to": ["de"]}, 400, "characters together"),
        ("/label", {"inputs": ["x"], "model": "tags"}, 400, "model: needs one for /label: labels"),
        ("/label", [1], 400, "body: needs a JSON object, got [1]"),
        ("/reverse", {"inputs": [3]}, 422, "inputs.0: "),
        ("/generate", {"max_new_tokens": 10**9}, 422, "max_new_tokens: "),
        ("/classify", None, 400, "an empty file"),
        ("/transcribe", None, 400, "an empty one of 0 bytes"),
    ],
)
def test_bad_requests_are_answered_in_one_sentence(client, path, body, status, message):
    # with escapes, as a browser sends half of a pair
    content = None if body is None else json.dumps(body)
    header = {"Content-Type": "application/json"}
    answer = client.post(path, content=content, headers=header)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_the_gate(client):
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 421
    foreign = {"Origin": "http://evil.example"}
    assert client.post("/translate", json={"texts": ["x"]}, headers=foreign).status_code == 403
    with pytest.raises(WebSocketDisconnect):
        client.websocket_connect("ws://127.0.0.1/transcribe/stream", headers=foreign).__enter__()
    assert client.get("/health", headers={"Content-Length": str(10**12)}).status_code == 413
    app = create_app({"text": text_run()}, token="secret")
    with TestClient(app, base_url="http://localhost") as locked:
        assert locked.get("/health").status_code == 401
        ok = locked.get("/health", headers={"Authorization": "Bearer secret"})
        assert ok.json()["models"] == ["text"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/classify?top=1&Top=2"),
        ("POST", "/transcribe?beam=3"),
        ("POST", "/translate?to=de"),
        ("POST", "/label?top=2"),
        ("GET", "/health?verbose=1"),
        ("GET", "/v1/models?limit=3"),
    ],
)
def test_an_unknown_parameter_is_refused_by_name(client, method, path):
    answer = client.request(method, path, json={"texts": ["x"], "to": ["de"]})
    name = path.rpartition("?")[2].rpartition("&")[2].partition("=")[0]
    assert answer.status_code == (400 if path.startswith("/v1") else 422)
    assert f"got {name!r}" in answer.text


def test_an_unknown_parameter_of_a_websocket_is_refused_by_name(client):
    with (
        pytest.raises(WebSocketDisconnect) as closed,
        client.websocket_connect("ws://127.0.0.1/transcribe/stream?beam=3"),
    ):
        pass
    assert (closed.value.code, closed.value.reason) == (
        1008,
        "parameter: needs one of model, rate, got 'beam'",
    )


def unbounded(schema, definitions, name=""):
    """The fields below which a request may be of any length, or have any other field."""
    if "$ref" in schema:
        return unbounded(definitions[schema["$ref"].rpartition("/")[2]], definitions, name)
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    found = [x for part in parts for x in unbounded(part, definitions, name)]
    for key, part in schema.get("properties", {}).items():
        found += unbounded(part, definitions, f"{name}.{key}")
    limits = {"string": {"maxLength", "enum", "const"}, "array": {"maxItems"}}
    kind = schema.get("type")
    if kind in limits and not limits[kind] & set(schema):
        found.append(name)
    if (
        kind == "object"
        and "properties" in schema
        and schema.get("additionalProperties") is not False
    ):
        found.append(f"{name} takes others")
    return found


def test_every_field_of_every_request_has_a_bound_and_no_request_takes_others():
    runs = {"text": text_run(), "phrases": rg.load("phrases", device="cpu")}
    app = create_app(runs, explorer=Explorer(Catalog([]))).app
    described = app.openapi()
    definitions, found = described["components"]["schemas"], {}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            for media in content.values():
                schema = media["schema"]
                nested = definitions | schema.get("$defs", {})
                if names := unbounded(schema, nested):
                    found[path] = names
    assert found == {}


def test_no_page_loads_anything_from_elsewhere(client):
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    assert "/translate" in client.get("/openapi.json").json()["paths"]


def test_metrics_count_requests(client):
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'regard_requests_total{path="other",status="404"}' in text
    assert "regard_batches_total" in text


def test_a_full_queue_is_refused_and_one_bad_input_fails_alone():
    worker, release = Worker(max_waiting=2), threading.Event()
    worker.submit("x", [0], lambda inputs: [release.wait(30)])
    while worker.waiting:
        threading.Event().wait(0.01)

    def invert(inputs):
        return [1 / x for x in inputs]

    good, bad = worker.submit("y", [2], invert), worker.submit("y", [0], invert)
    with pytest.raises(Busy, match="fewer than 2 waiting"):
        worker.submit("y", [1], invert)
    release.set()
    assert good.result(10) == [0.5]
    with pytest.raises(ZeroDivisionError):
        bad.result(10)
    worker.close()


def test_a_batch_is_never_larger_than_its_limit():
    worker, release = Worker(max_batch=4), threading.Event()
    worker.submit("x", [0], lambda inputs: [release.wait(30)])
    while worker.waiting:
        threading.Event().wait(0.01)
    sizes = list[int]()

    def double(inputs):
        sizes.append(len(inputs))
        return [2 * x for x in inputs]

    inputs = [range(10 * n, 10 * n + size) for n, size in enumerate((3, 2, 1, 4, 9))]
    several = [worker.submit("y", numbers, double) for numbers in inputs]
    release.set()
    assert [x.result(10) for x in several] == [[2 * n for n in numbers] for numbers in inputs]
    assert sizes == [4, 2, 4, 9]  # 3 + 1, 2, 4, and a request that is too large goes alone
    worker.close()


def test_requests_of_other_keys_are_batches_of_their_own():
    worker, release = Worker(), threading.Event()
    worker.submit("x", [0], lambda inputs: [release.wait(30)])
    while worker.waiting:
        threading.Event().wait(0.01)
    waiting = [
        worker.submit(key, [n], lambda inputs, key=key: [(key, x) for x in inputs])
        for n, key in enumerate("abab")
    ]
    release.set()
    assert [x.result(10) for x in waiting] == [[(key, n)] for n, key in enumerate("abab")]
    worker.close()


def test_a_shutdown_ends_streams_with_an_error_and_one_that_leaves_is_removed():
    app = create_app({"text": text_run()})
    server = app.app.state.server

    async def leave():
        pieces = server.generate(server.runs["text"], "import ", max_new_tokens=4000, sampling=None)
        await anext(pieces)
        assert server.worker.streams == 1
        await pieces.aclose()

    asyncio.run(leave())
    for _ in range(500):
        if not server.worker.streams and not len(server_generator(app)):
            break
        time.sleep(0.01)
    assert len(server_generator(app)) == 0
    body = {"prompt": "import ", "max_new_tokens": 4000, "stream": True}
    with TestClient(app, base_url="http://localhost") as client:
        step = server_generator(app).step

        def step_and_stop():
            server.worker.stop()
            return step()

        server_generator(app).step = step_and_stop
        events = client.post("/generate", json=body).text.strip().split("\n\n")
        assert json.loads(events[-1][6:])["error"].endswith("got a shutdown")
        assert client.post("/generate", json={"prompt": "a"}).status_code == 503


def test_clients_of_a_batch_meet_again_in_the_next(monkeypatch):
    monkeypatch.setattr("regard.web.worker.MAX_WINDOW", 20.0)
    monkeypatch.setattr("regard.web.worker.WINDOW_SHARE", 1e6)
    worker, release, taken = Worker(), threading.Event(), threading.Event()
    worker.submit("x", [0], lambda inputs: (taken.set(), [release.wait(30)])[1])
    assert taken.wait(30)
    futures = [worker.submit("y", [n], list) for n in (1, 2)]
    release.set()
    time.sleep(0.1)
    assert not futures[0].done()  # the first client is expected again
    futures.append(worker.submit("y", [3], list))
    assert [future.result(10) for future in futures] == [[1], [2], [3]]
    assert worker.batch_sizes == {1: 1, 3: 1}
    worker.close()


class Counting:
    """A source of streams that count: up to a limit, or without end."""

    def __init__(self):
        self.streams = []

    def begin(self, limit):
        self.streams.append(Handle(limit=limit, count=0, ended=False))
        return self.streams[-1]

    def step(self):
        for stream in self.streams:
            stream.count += 1
            stream.ended = stream.count == stream.limit
        pieces = [(stream, stream.count) for stream in self.streams]
        self.streams = [stream for stream in self.streams if not stream.ended]
        return pieces

    def remove(self, stream):
        self.streams.remove(stream)


class Handle(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def test_streams_advance_together_and_can_be_cancelled():
    worker, order, ended = Worker(), [], threading.Event()
    source, release = Counting(), threading.Event()

    def emit(name):
        def keep(piece):
            order.append((name, piece))
            if piece is END:
                ended.set()

        return keep

    worker.submit("x", [0], lambda inputs: [release.wait(30)])
    endless = worker.stream(source, lambda: source.begin(None), emit("a"))
    worker.stream(source, lambda: source.begin(3), emit("b"))
    release.set()
    assert ended.wait(10)
    endless.cancel()
    for _ in range(200):
        if not worker.streams:
            break
        time.sleep(0.01)
    assert source.streams == []
    assert order[:7] == [(x, n) for n in (1, 2, 3) for x in "ab"] + [("b", END)]
    bad = []
    worker.stream(source, lambda: 1 / 0, bad.append)
    for _ in range(200):
        if bad:
            break
        time.sleep(0.01)
    assert isinstance(bad[0], ZeroDivisionError)
    worker.close()
    with pytest.raises(Busy, match="got a shutdown"):
        worker.submit("x", [0], list)
