"""The API returns what the library returns, batches what waits, and refuses what is not for it."""

import json
import threading

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image, ImageDraw, ImageFont
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import regard as rg
from regard.web.api import create_app
from regard.web.worker import END, Busy, Worker


def text_run():
    tokenizer = rg.data.ByteTokenizer()
    torch.manual_seed(0)
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    return rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)


@pytest.fixture(scope="module")
def client():
    names = ("phrases", "glyphs", "morse")
    runs = {name: rg.load(name, device="cpu") for name in names} | {"text": text_run()}
    with TestClient(create_app(runs), base_url="http://127.0.0.1") as client:
        client.runs = runs
        yield client


def test_translations_are_those_of_the_library(client):
    texts = ["3 days", "5 November 2026"]
    answer = client.post("/translate", json={"texts": texts, "to": ["de", "fr"]}).json()
    expected = client.runs["phrases"].translate(texts, to=["de", "fr"])
    for to in ("de", "fr"):
        assert [row[to]["text"] for row in answer["translations"]] == expected[to]
    assert 0 < answer["translations"][0]["de"]["confidence"] <= 1


def test_requests_that_wait_are_batched(client):
    worker = client.app.app.state.server.worker
    release, before = threading.Event(), worker.batch_sizes.copy()
    worker.submit("block", [0], lambda inputs: [release.wait(30)])
    answers = []
    threads = [
        threading.Thread(
            target=lambda n=n: answers.append(
                client.post("/translate", json={"texts": [f"{n} days"], "to": ["de"]}).json()
            )
        )
        for n in range(2, 10)
    ]
    for thread in threads:
        thread.start()
    for _ in range(300):
        if worker.waiting == 8:
            break
        threading.Event().wait(0.05)
    release.set()
    for thread in threads:
        thread.join()
    sizes = worker.batch_sizes - before
    assert sizes[8] == 1
    texts = sorted(answer["translations"][0]["de"]["text"] for answer in answers)
    assert texts == sorted(f"{n} Tage" for n in range(2, 10))


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
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == expected


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/translate", {"texts": ["3 days"]}, 400, "to: needs one or more of"),
        ("/translate", {"texts": ["3 days"], "to": ["ed"]}, 400, "got 'ed'; try"),
        ("/translate", {"texts": []}, 422, "texts: "),
        ("/translate", {"texts": ["x"], "too": ["de"]}, 422, "too: "),
        ("/translate", {"texts": [" "], "to": ["de"]}, 400, "it needs words"),
        ("/translate", {"texts": ["x"], "model": "morse"}, 400, "model: needs one that can transl"),
        ("/generate", {"max_new_tokens": 10**9}, 422, "max_new_tokens: "),
        ("/classify", None, 400, "an empty file"),
        ("/transcribe", None, 400, "an empty one of 0 bytes"),
    ],
)
def test_bad_requests_are_answered_in_one_sentence(client, path, body, status, message):
    answer = client.post(path, json=body) if body is not None else client.post(path)
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


def test_streams_take_turns_and_can_be_cancelled():
    worker, order, ended = Worker(), [], threading.Event()

    def emit(name):
        def keep(piece):
            order.append((name, piece))
            if piece is END and name == "b":
                ended.set()

        return keep

    release = threading.Event()
    worker.submit("x", [0], lambda inputs: [release.wait(30)])
    endless = worker.stream(iter(int, 1), emit("a"))
    worker.stream(iter("123"), emit("b"))
    release.set()
    assert ended.wait(10)
    endless.cancel()
    worker.close()
    names = [name for name, _ in order]
    assert names[: 2 * 3] == ["a", "b"] * 3
