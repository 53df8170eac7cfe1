"""Live transcription ends with a close code, within limits of size, number and time."""

import asyncio
import time
from typing import Any, ClassVar, cast

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import regard as rg
from regard.web import streams
from regard.web.api import create_app
from regard.web.explorer import Explorer
from regard.web.explorer.catalog import Catalog
from regard.web.worker import Worker

PATHS = ["/transcribe/stream?rate=16000", "/explore/sound/stream?model=morse&rate=16000"]


@pytest.fixture(scope="module")
def client():
    explorer = Explorer(Catalog(["morse"], device="cpu"))
    app = create_app({"morse": rg.load("morse", device="cpu")}, explorer=explorer)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def connect(client, path):
    return client.websocket_connect(f"ws://127.0.0.1{path}")


def ending(socket):
    """Close code and error of a socket."""
    error = ""
    while True:
        try:
            error = socket.receive_json().get("error", error)
        except WebSocketDisconnect as closed:
            return closed.code, error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("messages", "code", "error"),
    [
        ([b"x"], 1007, "samples: need two bytes each, got half of one at the end"),
        ([b"x", b"y"], 1000, ""),
        ([b""], 1000, ""),
        ([], 1000, ""),
        ([bytes(1 << 20), bytes(3)], 1007, "samples: need two bytes each"),
        ([bytes((1 << 20) + 1)], 1009, "samples: need at most 1048576 bytes per message"),
        ([b"x", bytes(1 << 20)], 1009, "samples: need at most 1048576 bytes per message"),
    ],
)
def test_every_recording_gets_a_close_code(client, path, messages, code, error):
    with connect(client, path) as socket:
        for message in messages:
            socket.send_bytes(message)
        socket.send_text("end")
        got, reason = ending(socket)
    assert got == code
    assert reason.startswith(error)
    assert bool(reason) == bool(error)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rate", ["0", "-1", "999", "1000001", str(10**12)])
def test_a_rate_that_no_microphone_has_is_refused(client, path, rate):
    with connect(client, path.replace("16000", rate)) as socket:
        socket.send_bytes(bytes(320))
        assert ending(socket) == (
            1008,
            f"rate: needs 1000 to 1000000 samples per second, got {rate}",
        )


@pytest.mark.parametrize("path", PATHS)
def test_a_recording_without_messages_ends(client, path, monkeypatch):
    monkeypatch.setattr(streams, "IDLE_SECONDS", 0.2)
    with connect(client, path) as socket:
        started = time.monotonic()
        code, error = ending(socket)
    assert code == 1008
    assert error.startswith("recording: needs a message every")
    assert time.monotonic() - started < 5


def test_a_recording_ends_when_it_is_too_long_however_often_samples_come(client, monkeypatch):
    monkeypatch.setattr(streams, "MAX_SECONDS", 0.5)
    with connect(client, PATHS[0]) as socket:
        error = None
        while error is None:
            socket.send_bytes(bytes(320))
            error = socket.receive_json().get("error")
            time.sleep(0.02)
        assert error.startswith("recording: needs at most")
        assert ending(socket) == (1008, "")


def test_recordings_at_a_time_are_limited_over_both_paths_and_make_room_when_they_end(
    client, monkeypatch
):
    monkeypatch.setattr(streams, "MAX_RECORDINGS", 2)
    for _ in range(2):
        with connect(client, PATHS[0]) as first, connect(client, PATHS[1]) as second:
            for socket in (first, second):
                socket.send_bytes(bytes(320))
                assert socket.receive_json()["text"] == ""
            with connect(client, PATHS[0]) as third:
                code, error = ending(third)
            assert (code, error[:35]) == (1013, "server: needs at most 2 recordings ")


class Socket:
    """Silence arrives on it; the test client would hide the close after a mistake of ours."""

    scope: ClassVar = {}

    async def accept(self, subprotocol):
        self.sent = []

    async def receive(self):
        return {"type": "websocket.receive", "bytes": bytes(320)}

    async def send_json(self, message):
        self.sent.append(message)

    async def close(self, code):
        self.sent.append(code)


def test_a_mistake_of_ours_is_closed_as_one(monkeypatch):
    monkeypatch.setattr(streams.LiveTranscript, "push", lambda *_: 1 / 0)

    async def find_run():
        return rg.load("morse", device="cpu")

    worker, socket = Worker(), cast(Any, Socket())
    recordings = streams.LiveRecordings(worker)
    with pytest.raises(ZeroDivisionError):  # for the server's log
        asyncio.run(recordings.transcribe(socket, find_run, 16000))
    assert socket.sent == [
        {"error": "server: failed with ZeroDivisionError; its log has the traceback"},
        1011,
    ]
    assert not recordings.open
    worker.close()
