"""Connections that are slow, ambiguous or too many cost the server nothing; the others go on."""

import socket
import time

import pytest
from starlette.testclient import TestClient
from web_server import Client, running, wait_until

from regard.web import gate
from regard.web import server as server_module
from regard.web.api import create_app
from regard.web.explorer import Explorer, QueryRequest, query
from regard.web.explorer import explorer as registry
from regard.web.explorer.catalog import Catalog

HEAD, BODY = 0.3, 0.4  # seconds


@pytest.fixture(scope="module")
def server():
    query("test.slow", QueryRequest, is_cached=False)(lambda *_: time.sleep(3 * HEAD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "HEAD_SECONDS", HEAD)
        patch.setattr(gate, "BODY_SECONDS", BODY)
        patch.setattr(gate, "BODY_RATE", 1000)
        with running(create_app({}, explorer=Explorer(Catalog([])))) as address:
            yield address
    del registry._queries["test.slow"]


def served(server):
    """How many requests of queries have ended."""
    with Client(server).send("GET", "/metrics") as client:
        return client.answer()[2].count(b'status="499"')


def seconds_to_close(client, text=b"", pause=0.05):
    """How long the server keeps a connection on which bytes of a text arrive one by one."""
    started, drips = time.monotonic(), iter(text)
    client.socket.settimeout(pause)
    while time.monotonic() - started < 5:
        try:
            client.socket.sendall(bytes([next(drips, 32)]) if text else b"")
            if not (piece := client.socket.recv(65536)):
                break
            client.received += piece
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.monotonic() - started


@pytest.mark.parametrize(
    "text", [b"", b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 99], ids=["none", "drip"]
)
def test_a_head_that_is_not_finished_in_time_ends_the_connection(server, text):
    with Client(server) as client:
        assert HEAD / 2 < seconds_to_close(client, text) < HEAD + 1
        assert client.received.startswith(b"HTTP/1.1 408 ")


def test_the_head_of_a_second_request_has_its_time_too(server):
    with Client(server) as client:
        assert client.send("GET", "/health").answer()[0] == 200
        client.received = b""
        assert seconds_to_close(client, b"GET /health HTTP/1.1\r\nx" * 9) < HEAD + 1
        assert b"408" in client.received


def test_a_connection_that_ends_before_its_head_leaves_no_timer(server):
    Client(server).socket.close()
    with Client(server).send("GET", "/health") as client:
        assert client.answer()[0] == 200


def test_a_body_that_is_not_finished_in_time_is_refused_and_ends_the_connection(server):
    for path in ("/explore/models", "/nowhere"):
        with Client(server).send("POST", path, content_length="1000") as client:
            assert seconds_to_close(client, b"{" * 99) < BODY + 2
            expected = b"HTTP/1.1 408 " if path != "/nowhere" else b"HTTP/1.1 404 "
            assert client.received.startswith(expected)


def test_a_client_that_leaves_within_its_body_is_no_error_of_the_server(server, caplog):
    before = served(server)
    with Client(server) as client:
        client.socket.sendall(
            b"POST /explore/models HTTP/1.1\r\nhost: 127.0.0.1\r\nx-regard: 1\r\n"
            b"content-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        )
        time.sleep(HEAD / 3)
    wait_until(lambda: served(server) > before, 5)
    assert [x.getMessage() for x in caplog.records if x.levelname == "ERROR"] == []


def test_a_long_body_has_more_time(server):
    content = b'{"responses": ["' + b"x" * 2000 + b'"]}'
    with Client(server).send("POST", "/explore/offline", content_length=str(3000)) as client:
        client.socket.sendall(content)
        time.sleep(2 * BODY)
        client.socket.sendall(b" " * (3000 - len(content)))
        assert b"needs a list of at most" in client.answer()[2]


def test_an_answer_may_take_longer_than_a_head(server):
    with Client(server).ask("test.slow", {}) as client:
        status, _, body = client.answer()
    assert (status, body) == (200, b"null")


def test_a_websocket_stays_open_longer_than_a_head(server):
    with Client(server) as client:
        path = "/explore/sound/stream?model=a&rate=8000"
        client.send(
            "GET", path, connection="Upgrade", upgrade="websocket", content_length=None,
            sec_websocket_key="x" * 22 + "==", sec_websocket_version="13",
        )  # fmt: skip
        head = client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"none, got 'a'" in client.read_until(b"none, got 'a'")


def test_more_connections_than_the_limit_are_refused_and_leave_room_when_they_end(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 4)
    with running(create_app({}, explorer=Explorer(Catalog([])))) as address:
        idle = [Client(address) for _ in range(4)]
        with Client(address).send("GET", "/health") as late:
            assert late.answer()[0] == 503
        for client in idle:
            client.socket.close()

        def is_served():
            with Client(address).send("GET", "/health") as client:
                return client.answer()[0] == 200

        wait_until(is_served, 5)


SMUGGLED = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def test_a_length_together_with_a_transfer_encoding_is_refused(server):
    body = b"2\r\n{}\r\n0\r\n\r\n" + SMUGGLED
    with Client(server).send(
        "POST", "/explore/models", body, content_length="12", transfer_encoding="chunked"
    ) as client:
        status, headers, content = client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert b"needs a request without content-length, got both" in content
        assert client.socket.recv(1000) == b""  # what was smuggled is not answered


# hosts


def asked(hosts, name):
    app = create_app({}, hosts=hosts, token="secret", explorer=Explorer(Catalog([])))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        return client.get("/", headers={"Host": name}).status_code


ADDRESSES = ["192.0.2.7", "192.0.2.7:8000", "[2001:db8::7]:8000", "[2001:db8::7]", "127.0.0.1"]


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_server_on_every_address_is_reached_by_each(name):
    hosts = (*gate.LOOPBACK, "0.0.0.0", "laptop")
    assert asked(hosts, name) == asked(hosts, "Laptop:8000") == 200
    assert asked((*gate.LOOPBACK, "::"), name) == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "192.0.2.7.evil.example", "2130706433", "0x7f.1", "[evil]", "127.1"]
)
def test_no_name_can_rebind_to_a_server_on_every_address(name):
    assert asked((*gate.LOOPBACK, "0.0.0.0", "laptop"), name) == 421


@pytest.mark.parametrize("name", [*ADDRESSES[:4], "laptop", "0.0.0.0"])
def test_a_server_on_loopback_is_reached_by_loopback_alone(name):
    assert asked(gate.LOOPBACK, name) == 421
    assert asked(gate.LOOPBACK, "LOCALHOST") == asked(gate.LOOPBACK, "[::1]:8000") == 200


def test_serve_takes_the_names_of_this_machine_beyond_loopback(monkeypatch, capsys):
    from regard.cli.serve import serve

    served = []
    monkeypatch.setattr("regard.web.server.serve_app", lambda app, **_: None)
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda *_: ("0.0.0.0", 8000))
    monkeypatch.setattr("regard.web.explorer.explorer.Explorer", lambda *_, **__: None)
    served_app = type("App", (), {"paths": []})
    monkeypatch.setattr(
        "regard.web.api.create_app", lambda *_, **options: (served.append(options), served_app)[1]
    )
    serve([], host="0.0.0.0", token="secret")
    assert {"0.0.0.0", socket.gethostname()} < set(served[0]["hosts"])
    assert f"http://{socket.gethostname()}:8000/#token=secret" in capsys.readouterr().out
