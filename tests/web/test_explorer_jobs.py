"""Queries on sockets: they end when nobody waits, the newest of a view wins, all get an answer."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from web_server import Client, running, wait_until

from regard.errors import ShapeError
from regard.web import api
from regard.web import server as server_module
from regard.web.api import create_app
from regard.web.explorer import Explorer, QueryRequest, query, query_names, routes
from regard.web.explorer import explorer as registry
from regard.web.explorer.catalog import Catalog
from regard.web.jobs import Cancelled, Job
from regard.web.worker import Busy, Worker

WAIT = {"accept": "application/json"}
STREAM = {"accept": "text/event-stream, application/json"}


def test_threads_that_share_a_model_get_the_answers_of_one_alone():
    catalog = Catalog(["phrases-gru"])
    bodies = [{"model": "phrases-gru", "text": text} for text in ("3 days", "4 days 2 hours")]
    expected = [Explorer(catalog).answer("text", body) for body in bodies]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(3):
            explorer = Explorer(catalog)
            with ThreadPoolExecutor(3) as pool:
                warm_up = pool.submit(explorer.warm_up)
                jobs = [pool.submit(explorer.answer, "text", body) for body in bodies]
                warm_up.result()
                assert [job.result() for job in jobs] == expected
    finally:
        sys.setswitchinterval(interval)


class LoopRequest(QueryRequest):
    name: str = "loop"
    steps: int = 1_000_000
    fails: bool = False


class Loops:
    """Queries that go step by step as a test says, with the steps that each made and its end."""

    def __init__(self):
        self.steps, self.ended, self.order = {}, {}, []
        self.may_step = threading.Event()
        self.may_step.set()

    def run(self, explorer, request, job):
        """A query that takes as many steps as it is asked for."""
        self.order.append(request.name)
        try:
            for n in range(request.steps):
                self.steps[request.name] = n + 1
                job.report(n / request.steps, f"step {n}")
                self.may_step.wait(0.002) or self.may_step.wait()
                threading.Event().wait(0.002)
            if request.fails:
                raise ZeroDivisionError
        except Cancelled:
            self.ended[request.name] = "cancelled"
            raise
        self.ended[request.name] = "done"
        return {"name": request.name}

    def run_unchecked(self, explorer, request, job):
        """A query that calls torch again and again, and never checks its job."""
        x = torch.zeros(2)
        try:
            for n in range(request.steps):
                self.steps["unchecked"] = n + 1
                x = x + 1
                threading.Event().wait(0.002)
        except Cancelled:
            self.ended["unchecked"] = "cancelled"
            raise


@pytest.fixture
def loops():
    loops = Loops()
    query("test.unchecked", LoopRequest, is_cached=False)(loops.run_unchecked)
    query("test.loop", LoopRequest, is_cached=False)(loops.run)
    query("test.urgent", LoopRequest, is_cached=False, priority=-1)(loops.run)
    yield loops
    loops.may_step.set()
    for name in ("test.loop", "test.urgent", "test.unchecked"):
        del registry._queries[name]


@pytest.fixture
def worker():
    return Worker(max_waiting=4)


@pytest.fixture
def server(loops, worker, monkeypatch):
    monkeypatch.setattr(routes, "PATIENCE", 0.02)
    monkeypatch.setattr(routes, "PROGRESS_SECONDS", 0.005)
    with running(create_app({}, worker=worker, explorer=Explorer(Catalog([])))) as address:
        yield address


@pytest.mark.parametrize("accept", [WAIT, STREAM], ids=["waiting", "streaming"])
def test_a_client_that_leaves_stops_its_query_within_a_step(server, loops, accept):
    with Client(server).ask("test.loop", {}, **accept) as client:
        if accept is STREAM:
            client.read_until(b"event: progress")
        wait_until(lambda: loops.steps.get("loop", 0) > 1)
    wait_until(lambda: "loop" in loops.ended, 2)
    assert loops.ended["loop"] == "cancelled"


def test_a_replaced_request_of_a_client_that_left_leaves_nothing_in_the_log(
    server, loops, monkeypatch, caplog
):
    monkeypatch.setattr(routes, "PROGRESS_SECONDS", 0.3)
    for n in range(3):
        with Client(server).ask("test.loop", {}, x_regard_view="v", **STREAM) as old:
            old.read_until(b"event: progress")
            new = Client(server).ask("test.loop", {"name": f"n{n}", "steps": 1}, x_regard_view="v")
            wait_until(lambda: loops.ended.pop("loop", "") == "cancelled")
        with new:
            assert new.answer()[0] == 200
    threading.Event().wait(0.5)  # until the last report of progress is due
    gc.collect()
    assert [x.getMessage() for x in caplog.records if x.name == "asyncio"] == []


def test_an_answer_of_which_a_part_was_cancelled_is_not_kept_for_the_next_client():
    class Leaving(Job):
        def report(self, fraction, text=""):
            if text == "leaving out single heads":
                self.cancel()
            super().report(fraction, text)

    explorer, body = Explorer(Catalog(["stories"])), {"model": "stories", "text": "The keys"}
    with pytest.raises(Cancelled):
        explorer.answer("text", body, Leaving())
    assert explorer.answer("text", body)["effects"] is not None


def test_a_client_that_leaves_stops_a_long_input_within_a_block(server, loops):
    with Client(server).ask("test.unchecked", {"name": "x" * 3000}):
        wait_until(lambda: loops.steps.get("unchecked", 0) > 1)
    wait_until(lambda: "unchecked" in loops.ended, 2)
    assert loops.ended["unchecked"] == "cancelled"


@pytest.mark.parametrize("name", ["text", "text.lens", "what-if", "time"])
def test_a_text_of_too_many_tokens_is_refused_before_the_model_runs(name, monkeypatch):
    explorer = Explorer(Catalog(["phrases", "phrases-gru"], device="cpu"))
    monkeypatch.setattr("torch.nn.Module.__call__", lambda *_: 1 / 0)
    model = "phrases-gru" if name == "time" else "phrases"
    body = {"model": model, "text": "day " * 99_000, "to": "de"}
    with pytest.raises(ShapeError, match="text: needs at most 4096 tokens here, got 9900"):
        explorer.answer(name, body)


BLOCKED = """
import sys, threading, time
from web_server import Client
from regard.web import api, server
from regard.web.explorer import Explorer, QueryRequest, query
from regard.web.explorer.catalog import Catalog

def block(*_):
    print("blocked", flush=True)
    time.sleep(600)

server.STOP_SECONDS = api.CLOSE_SECONDS = 0.2
query("test.block", QueryRequest, is_cached=False)(block)
port = int(sys.argv[1])

def ask():
    for _ in range(400):
        try:
            Client(f"http://127.0.0.1:{port}").ask("test.block", {}).answer()
        except OSError:
            time.sleep(0.05)

threading.Thread(target=ask, daemon=True).start()
server.serve_app(api.create_app({}, explorer=Explorer(Catalog([]))), port=port)
"""


def test_closing_a_worker_waits_no_longer_than_it_is_told():
    worker, release = Worker(), threading.Event()
    worker.submit("block", [0], lambda _: [release.wait(30)])
    wait_until(lambda: not worker.waiting)
    worker.close(0.05)
    assert worker.is_running
    release.set()
    worker.close()
    assert not worker.is_running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 0)]
)
def test_a_shutdown_does_not_wait_for_a_step_that_cannot_be_interrupted(sent, code):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, str(port)],
        env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"blocked\n"
            process.send_signal(sent)
            assert process.wait(3) == code
        finally:
            process.kill()
    assert server_module.STOP_SECONDS + api.CLOSE_SECONDS < 8


def test_a_query_whose_client_left_while_it_waited_never_begins(server, loops, worker):
    loops.may_step.clear()
    with Client(server).ask("test.loop", {"name": "first", "steps": 3}) as first:
        wait_until(lambda: "first" in loops.steps)
        with Client(server).ask("test.loop", {"name": "second"}):
            wait_until(lambda: worker.waiting == 1)
        wait_until(lambda: worker.waiting == 0, 2)
        loops.may_step.set()
        assert first.answer()[0] == 200
        with Client(server).ask("test.loop", {"name": "third", "steps": 1}) as third:
            assert json.loads(third.answer()[2]) == {"name": "third"}
    assert loops.order == ["first", "third"]


def test_the_newest_query_of_a_view_replaces_the_older_ones_and_no_other(server, loops, worker):
    loops.may_step.clear()
    clients = {name: Client(server) for name in "abcde"}
    views = {"a": "one/text", "b": "one/text", "c": "one/atlas", "d": "two/text", "e": "one/text"}
    for n, (name, client) in enumerate(clients.items()):
        client.ask("test.loop", {"name": name, "steps": 3}, x_regard_view=views[name])
        wait_until(lambda n=n: "a" in loops.steps and worker.waiting == min(n, 3))
    replaced = clients["b"].answer()  # at once, although `a` still runs
    loops.may_step.set()
    answers = {name: client.answer()[0] for name, client in clients.items() if name != "b"}
    assert replaced[0] == 400
    assert "newer request" in json.loads(replaced[2])["error"]
    assert answers == {"a": 400, "c": 200, "d": 200, "e": 200}
    assert loops.ended == {"a": "cancelled", "c": "done", "d": "done", "e": "done"}
    for client in clients.values():
        client.socket.close()


def test_a_view_that_asks_often_does_not_fill_the_queue(server, loops, worker):
    loops.may_step.clear()
    clients = [Client(server) for _ in range(3 * worker.max_waiting)]
    for n, client in enumerate(clients):
        body = {"name": str(n), "steps": 1}
        client.ask("test.loop", body, x_regard_view="one/text")
        wait_until(lambda n=n: "0" in loops.steps and worker.waiting == min(n, 1))
        if n > 1:
            assert clients[n - 1].answer()[0] == 400
    loops.may_step.set()
    assert json.loads(clients[-1].answer()[2]) == {"name": str(len(clients) - 1)}
    for client in clients:
        client.socket.close()


def test_a_full_queue_is_refused_with_the_time_to_retry(server, loops, worker):
    loops.may_step.clear()
    clients = [Client(server) for _ in range(worker.max_waiting + 1)]
    for n, client in enumerate(clients):
        client.ask("test.loop", {"name": str(n), "steps": 1})
        wait_until(lambda n=n: "0" in loops.steps and worker.waiting == n)
    with Client(server).ask("test.loop", {"name": "late"}) as late:
        status, headers, body = late.answer()
    loops.may_step.set()
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["error"] == "server: needs fewer than 4 waiting requests, got more"
    assert [client.answer()[0] for client in clients] == [200] * len(clients)
    for client in clients:
        client.socket.close()


def test_queries_of_a_better_priority_are_computed_first(server, loops, worker):
    loops.may_step.clear()
    asked = [("test.loop", "a"), ("test.loop", "b"), ("test.urgent", "c"), ("test.urgent", "d")]
    clients = []
    for n, (path, name) in enumerate(asked):
        clients.append(Client(server).ask(path, {"name": name, "steps": 1}))
        wait_until(lambda n=n: "a" in loops.steps and worker.waiting == n)
    loops.may_step.set()
    assert [client.answer()[0] for client in clients] == [200] * 4
    assert loops.order == ["a", "c", "d", "b"]
    for client in clients:
        client.socket.close()


@pytest.mark.parametrize(
    ("body", "last"),
    [
        ({"steps": 40}, ("response", {"name": "loop"})),
        ({"steps": 40, "fails": True}, ("error", 500)),
    ],
)
def test_progress_never_goes_back_and_ends_with_an_answer_or_an_error(server, body, last):
    with Client(server).ask("test.loop", body, **STREAM) as client:
        *progress, (name, content) = client.events()
    fractions = [x["fraction"] for _, x in progress]
    assert {kind for kind, _ in progress} == {"progress"}
    assert len(fractions) > 3
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] < fractions[-1] <= 1
    assert (name, content.get("status", content)) == last


def test_events_are_compressed_and_each_can_be_read_when_it_is_sent(server, loops):
    sent = {"headers": STREAM | {"accept-encoding": "gzip", "x-regard": "1"}}
    with httpx.stream("POST", f"{server}/explore/test.loop", json={}, **sent) as reply:
        assert reply.headers["content-encoding"] == "gzip"
        assert "event: progress" in next(reply.iter_text())  # of a query that goes on
    wait_until(lambda: loops.ended.get("loop") == "cancelled", 2)
    reply = httpx.post(f"{server}/explore/test.loop", json={"steps": 40}, **sent)
    assert reply.text.endswith('event: response\ndata: {"name": "loop"}\n\n')


def test_a_quick_answer_is_plain_json_also_for_a_client_that_reads_events(server):
    with Client(server).ask("test.loop", {"steps": 1}, **STREAM) as client:
        status, headers, body = client.answer()
    assert (status, headers["content-type"], body) == (200, "application/json", b'{"name": "loop"}')


def test_a_shutdown_answers_what_runs_and_what_waits(server, loops, worker):
    loops.may_step.clear()
    clients = []
    for n, accept in enumerate((WAIT, WAIT, STREAM)):
        clients.append(Client(server).ask("test.loop", {"name": str(n)}, **accept))
        wait_until(lambda n=n: "0" in loops.steps and worker.waiting == n)
    clients[2].read_until(b"event: progress")
    worker.stop()
    loops.may_step.set()
    for client in clients[:2]:
        status, _, body = client.answer()
        assert (status, json.loads(body)["error"][:7]) == (503, "server:")
    assert clients[2].events()[-1][1]["status"] == 503
    for client in clients:
        client.socket.close()


def test_a_shutdown_answers_also_behind_a_request_that_was_cancelled(loops):
    worker = Worker()
    loops.may_step.clear()
    running = worker.submit_job(Job(), lambda: loops.run(None, LoopRequest(steps=1), Job()))
    wait_until(lambda: "loop" in loops.steps)
    cancelled, waits = (worker.submit_job(Job(), dict) for _ in range(2))
    cancelled.cancel()
    worker.stop()
    loops.may_step.set()
    assert running.result(2) == [{"name": "loop"}]
    with pytest.raises(Busy, match="shutdown"):
        waits.result(2)


def test_no_request_is_lost_while_the_queue_is_taken_apart():
    worker = Worker(max_waiting=10_000)
    with ThreadPoolExecutor(8) as pool:
        futures = list(pool.map(lambda n: worker.submit(n % 3, [n], list), range(1000)))
    assert [x.result(5) for x in futures] == [[n] for n in range(1000)]
    worker.close()


def test_what_a_test_registers_is_gone_again():
    assert not [name for name in query_names() if name.startswith("test.")]


def test_progress_names_each_stage_and_reaches_the_end_step_by_step():
    class Watched(Job):
        def report(self, fraction, text=""):
            super().report(fraction, text)
            reports.append((self.progress[0], text.split()[0]))

    reports = []
    explorer = Explorer(Catalog(["stdlib"], device="cpu"))
    explorer.answer("text", {"model": "stdlib", "text": "import os\n"}, Watched())
    stages = list(dict.fromkeys(text for _, text in reports))
    assert stages[:3] == ["opening", "running", "measuring"]
    steps = [share for share, text in reports if text == "measuring"]
    assert steps == sorted(set(steps)) and steps[0] >= 0.8  # noqa: PT018
