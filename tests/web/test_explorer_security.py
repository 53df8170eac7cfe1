"""The page's server refuses what is not for it, on sockets, and user text never becomes markup."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from web_server import Client, running

from regard.errors import ConfigError, FileError, RegardError
from regard.page import FOLDER, offline_page, page_files
from regard.runs import find_run
from regard.web import gate
from regard.web.api import create_app
from regard.web.explorer import Explorer, explorer, query_names
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import BoundedStore

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script> -->",
    "<img src=x onerror=alert(1)>",
    "]]></style></head></body>",
    "\u202egnirts\u2066 \x00\x07\u2028\u2029",
    "\\u003c/script\\u003e $& $` $1 \\1 \\g<0>",
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "runs"
    folder.mkdir()
    return create_app({}, explorer=Explorer(Catalog(["phrases"], [folder], device="cpu")))


@pytest.fixture(scope="module")
def server(app):
    with running(app) as address:
        yield address


def status(server, method, path, body=b"", **headers):
    with Client(server).send(method, path, body, **headers) as client:
        return client.answer()[0]


def sentence(server, method, path, body=b"", **headers):
    with Client(server).send(method, path, body, **headers) as client:
        code, _, content = client.answer()
    return code, json.loads(content)["error"]


# who asks


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/explore/models", "/openapi.json"])
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost@evil.example", "", ":80"]
)
def test_another_host_is_refused(server, path, host):
    method = "POST" if path.startswith("/explore") else "GET"
    assert status(server, method, path, {}, host=host) == 421


def test_a_request_without_a_host_is_refused(server):
    assert status(server, "GET", "/", host=None) == 400


def test_another_origin_is_refused(server):
    port = server.rpartition(":")[2]
    for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1", f"http://x:{port}"):
        assert status(server, "POST", "/explore/models", {}, origin=origin) == 403
        assert status(server, "GET", "/", origin=origin) == 403
    assert status(server, "POST", "/explore/models", {}, origin=server) == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_every_query_needs_the_header_of_the_page(server, method):
    for name in (*query_names(), "upload", "offline"):
        assert status(server, method, f"/explore/{name}", {}, x_regard=None) == 403


def test_no_get_changes_anything(app, server):
    asked = app.app.state.server.requests.copy()
    routes = [x for x in app.app.routes if x.path.startswith("/explore/")]
    methods = {x.path: getattr(x, "methods", {"WebSocket"}) for x in routes}
    assert len(methods) > len(query_names())
    assert {path for path, x in methods.items() if "GET" in x} <= {"/explore/atlas/tiles"}
    assert set.union(*methods.values()) <= {"GET", "POST", "WebSocket"}
    assert {status(server, "GET", path) for path in methods} <= {404, 405, 422}
    assert not any(code == 200 for _, code in app.app.state.server.requests - asked)


def test_no_answer_allows_another_origin_to_read_it(server):
    for method, path in (("GET", "/"), ("OPTIONS", "/"), ("OPTIONS", "/explore/models")):
        with Client(server).send(method, path, access_control_request_method="POST") as client:
            code, headers, _ = client.answer()
        assert code == (200 if method == "GET" else 405)
        assert not [name for name in headers if name.startswith("access-control")]


def test_beyond_loopback_all_but_the_files_of_the_page_needs_the_token():
    app = create_app({}, hosts=("here",), token="secret", explorer=Explorer(Catalog([])))
    page_header, right = {"X-Regard": "1"}, {"Authorization": "Bearer secret"}
    with TestClient(app, base_url="http://here") as client:
        assert all(client.get(path).status_code == 200 for path in page_files())
        for headers in (page_header, page_header | {"Authorization": "Bearer Secret"}):
            for name in (*query_names(), "upload", "offline", "unknown"):
                assert client.post(f"/explore/{name}", json={}, headers=headers).status_code == 401
        for path in ("/openapi.json", "/health", "/metrics", "/models", "/page/none.js"):
            assert client.get(path).status_code == 401
        with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("ws://here/x"):
            pass
        assert (closed.value.code, closed.value.reason[:13]) == (1008, "authorization")
        ok = client.post("/explore/models", json={}, headers=page_header | right)
        assert ok.json() == {"models": [], "damaged": []}


# what they ask for


@pytest.mark.parametrize(
    "path",
    [
        "/page/../gate.py",
        "/page/../../web/gate.py",
        "/page/%2e%2e/gate.py",
        "/page/%2e%2e%2fgate.py",
        "/page/..%5cgate.py",
        "/page/..\\gate.py",
        "//page/app.js",
        "/page//app.js",
        "/page/./app.js",
        "/page/lib/../app.js",
        "/page/app.js%00",
        "/page/app.js/",
        "/page/app.js%3f",
        "/page/",
        "/page",
        "/page/lib",
        "/page/vendor/preact.js.map",
        "//etc/passwd",
        "/..;/etc/passwd",
        "/%c0%ae%c0%ae/etc/passwd",
    ],
)
def test_no_path_leads_to_another_file(server, path):
    with Client(server).send("GET", path) as client:
        code, _, body = client.answer()
    assert code in (307, 404)  # FastAPI redirects a slash at the end
    assert b"import" not in body
    assert b"root:" not in body


def test_a_path_may_be_percent_encoded(server):
    assert status(server, "GET", "/page/%61pp.js") == 200
    assert status(server, "GET", "http://evil.example/page/app.js") in (400, 404)


def test_files_have_no_ranges_and_are_revalidated(server):
    with Client(server).send("GET", "/page/app.js", range="bytes=0-3") as client:
        code, headers, body = client.answer()
    assert (code, len(body)) == (200, len(page_files()["/page/app.js"].content))
    assert "accept-ranges" not in headers
    with Client(server).send("HEAD", "/page/app.js") as client:
        assert client.answer()[:2] == (200, client.answer()[1] | {"etag": headers["etag"]})
        assert client.received.endswith(b"\r\n\r\n")
    assert status(server, "GET", "/page/app.js", if_none_match=headers["etag"]) == 304


def test_every_file_has_a_policy_without_inline_code(server):
    for path in page_files():
        with Client(server).send("GET", path) as client:
            headers = client.answer()[1]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert not re.search(r"unsafe-|https?:|\*", policy)
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../phrases",
        "runs/../phrases",
        "./phrases",
        "phrases/",
        "phrases\x00",
        str(find_run("phrases")),
        "C:\\phrases",
        "",
        "\ud800",
    ],
)
def test_a_model_is_never_a_path(server, name):
    code, error = sentence(server, "POST", "/explore/text", {"model": name, "text": "3 days"})
    assert code == 400
    assert error.startswith("model: needs one of phrases, got " if name != "\ud800" else "model: ")


def test_an_unknown_query_is_answered_in_a_sentence(server):
    assert sentence(server, "POST", "/explore/modelz", {}) == (
        404,
        "query: needs a known name, got 'modelz'; try models",
    )


# folders of runs


def copied_run(folder, name="copy"):
    return Path(shutil.copytree(find_run("phrases"), folder / name))


def test_links_that_lead_out_of_the_folder_are_not_listed(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "runs"
    inside.mkdir()
    run = copied_run(outside)
    own = copied_run(inside, "own")
    (inside / "linked").symlink_to(run)
    (inside / "half").mkdir()
    (inside / "half" / "recipe.json").symlink_to(run / "recipe.json")
    (inside / "again").symlink_to(own)
    assert list(Catalog([], [inside]).entries) == ["runs/again", "runs/own"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 1, "recipe": 3}',
        b'{"version": 1, "recipe": {"name": "<b>", "data": [], "model": {}, "train": null}}',
        b'{"version": NaN, "recipe": {}}',
    ],
)
def test_a_damaged_run_is_left_out_and_the_others_stay(tmp_path, content):
    copied_run(tmp_path, "sound")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "recipe.json").write_bytes(content)
    catalog = Catalog([], [tmp_path])
    for _ in range(2):
        assert [x.rpartition("/")[2] for x in catalog.entries] == ["sound"]
    with pytest.raises(
        FileError, match=r"needs a whole run, got '.*/damaged', recipe.json: needs "
    ):
        catalog.entry(f"{tmp_path.name}/damaged")
    (damaged,) = Explorer(catalog).answer("models", {})["damaged"]
    assert damaged["name"] == f"{tmp_path.name}/damaged"
    assert damaged["reason"].startswith("recipe.json: needs ")
    shutil.copy(tmp_path / "sound" / "recipe.json", tmp_path / "damaged")
    assert [x.rpartition("/")[2] for x in catalog.entries] == ["damaged", "sound"]
    assert Explorer(catalog).answer("models", {})["damaged"] == []


def break_file(file, kind):
    content = file.read_bytes() if file.is_file() else b""
    file.unlink(missing_ok=True)
    if kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file)
    else:
        file.write_bytes(content[: len(content) // 2] + b"\xff")


FILES = ["recipe.json", "result.json", "metrics.jsonl", "calibration.json", "tokenizer.json"]


@pytest.mark.parametrize("kind", ["half", "folder", "loop"])
@pytest.mark.parametrize("name", [*FILES, "model.safetensors"])
def test_a_run_with_any_damaged_file_is_named_and_the_others_answer(tmp_path, name, kind):
    copied_run(tmp_path / "runs", "sound")
    break_file(copied_run(tmp_path / "runs", "damaged") / name, kind)
    explorer = Explorer(Catalog([], [tmp_path / "runs"], device="cpu"))
    for question in ("models", "runs", "runs.stamp", "cost", "time.models"):
        explorer.answer(question, {})
    question = {"text": "3 days", "to": "de"}
    answer = explorer.answer("text", question | {"model": "runs/sound"})
    assert answer["output"] == "3 Tage"
    refused = ""  # some damage leaves a run that can be opened
    try:
        explorer.answer("text", question | {"model": "runs/damaged"})
    except RegardError as error:
        refused = str(error)
    assert not refused or any(x in refused for x in ("damaged", "to:", "target:"))


def test_a_run_that_writes_a_checkpoint_has_another_version(tmp_path):
    run = copied_run(tmp_path, "training")
    (run / "model.safetensors").unlink()  # as while it trains
    (run / "checkpoints").mkdir()
    catalog = Catalog([run])
    before = catalog.version("training")
    assert catalog.version("training") == before
    (run / "metrics.jsonl").write_text("{}")  # every step, and no model is loaded from it
    assert catalog.version("training") == before
    (run / "checkpoints" / "step-00001000").mkdir()
    assert catalog.version("training") != before


@pytest.mark.parametrize(
    "content",
    [
        (1 << 62).to_bytes(8, "little") + b"{}",  # a header longer than any file
        (10**6).to_bytes(8, "little") + b"{}",
        b"\x10",
        b"",
        (2).to_bytes(8, "little") + b"{}",  # no tensors
    ],
)
def test_weights_with_a_wrong_header_are_refused_in_a_sentence(tmp_path, content):
    run = copied_run(tmp_path)
    (run / "model.safetensors").write_bytes(content)
    explorer = Explorer(Catalog([run]))
    with pytest.raises(ValueError, match="copy") as refused:
        explorer.answer("text", {"model": "copy", "text": "3 days"})
    assert "\n" not in str(refused.value)


# bodies


def test_headers_beyond_the_limit_are_refused_and_the_server_goes_on(server):
    with Client(server) as client:
        client.send("GET", "/", x_long="a" * 1_000_000)
        assert client.answer()[0] in (400, 431)
    assert status(server, "GET", "/") == 200


def test_a_declared_length_beyond_the_limit_is_refused(server, monkeypatch):
    monkeypatch.setattr(gate, "MAX_JSON", 1000)
    error = "body: needs at most 1000 bytes, got 1001"
    assert sentence(server, "POST", "/explore/models", b" " * 1001) == (413, error)
    for length in ("1" * 4000, "-1", "0x10", "1_0", "1, 2"):
        assert status(server, "POST", "/explore/models", b"{}", content_length=length) == 400


def test_a_body_without_a_length_is_refused_when_it_grows_too_long(server, monkeypatch):
    monkeypatch.setattr(gate, "MAX_JSON", 100_000)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    headers = {"content_length": None, "transfer_encoding": "chunked"}
    with Client(server).send(
        "POST", "/explore/models", chunk * 4 + b"0\r\n\r\n", **headers
    ) as client:
        assert client.answer()[0] == 413
    assert status(server, "POST", "/explore/models", b"2\r\n{}\r\n0\r\n\r\n", **headers) == 200


NO_JSON = "body: needs JSON, got something else"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", NO_JSON),
        (b"\xff\xfe", NO_JSON),
        (b"{" * 100_000, NO_JSON),
        (b'{"a":' * 100_000, NO_JSON),
        (b"[" * 900 + b"]" * 900, "body: needs an object, got list"),
        (b'{"a": NaN}', NO_JSON),
        (b'{"a": -Infinity}', NO_JSON),
        (b'{"a": ' + b"1" * 5000 + b"}", NO_JSON),
        (b'{"a": 1e999}', NO_JSON),
        (b"3", "body: needs an object, got int"),
    ],
)
@pytest.mark.parametrize("path", ["models", "offline"])
def test_a_body_that_is_no_json_object_is_refused_in_a_sentence(server, path, body, error):
    assert sentence(server, "POST", f"/explore/{path}", body) == (400, error)


def test_names_and_depths_that_cannot_be_are_refused_in_a_sentence(server):
    for content in (
        b'{"\\ud800": 1}',
        b'{"responses": 1}',
        b'{"responses": [' + b"0," * 500 + b"0]}",
    ):
        for path in ("models", "offline"):
            assert sentence(server, "POST", f"/explore/{path}", content)[0] == 400
    for depth in range(900, 1000, 7):  # about as deep as Python reads and writes
        content = b'{"responses": [{"a": %s}]}' % (b"[" * depth + b"]" * depth)
        assert status(server, "POST", "/explore/offline", content) in (200, 400)


@pytest.mark.parametrize(
    "text", [*HOSTILE, "\ud800 half", "x\udfff", "", "\U0001f468\u200d\U0001f469"]
)
def test_any_text_is_answered_with_json(server, text):
    with Client(server).ask("text", {"model": "phrases", "text": text, "to": "de"}) as client:
        code, headers, body = client.answer()
    assert (code in (200, 400), headers["content-type"]) == (True, "application/json")
    assert json.loads(body)


# the saved page


class Elements(HTMLParser):
    """The elements of a page, and the text inside of its scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.script = [], {}, None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.script = dict(attrs).get("id", "") if tag == "script" else None

    def handle_endtag(self, tag):
        self.script = None

    def handle_data(self, data):
        if self.script is not None:
            self.scripts[self.script] = data


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800 half"])
def test_text_in_a_saved_page_stays_text(server, text):
    responses = [{"name": "text", "body": {"text": text, text: 1}, "response": {"tokens": [text]}}]
    harmless = Elements(offline_page("/text", []))
    with Client(server).ask(
        "offline", {"state": f"/text?text={text}", "responses": responses}
    ) as client:
        code, headers, body = client.answer()
    page = Elements(body.decode())
    assert (code, page.tags) == (200, harmless.tags)
    assert headers["content-disposition"] == "attachment"  # never opened on the server's origin
    assert json.loads(page.scripts["saved"])["responses"] == json.loads(json.dumps(responses))


def test_a_saved_page_names_no_other_address():
    page = offline_page("/text", [])
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)[^\"]*\"", page)


def test_the_page_has_no_way_to_make_markup_or_code_of_text():
    ways = "innerHTML|outerHTML|insertAdjacentHTML|document\\.write|eval\\(|new Function|srcdoc"
    for path in FOLDER.rglob("*.js"):
        if path.parent.name != "vendor":
            assert not re.search(ways, path.read_text()), path.name


# uploads


def test_an_upload_has_a_limit(server, monkeypatch):
    monkeypatch.setattr(explorer, "MAX_UPLOAD", 1000)
    monkeypatch.setattr("regard.web.explorer.routes.MAX_UPLOAD", 1000)
    assert status(server, "POST", "/explore/upload", bytes(1000)) == 200
    assert sentence(server, "POST", "/explore/upload", bytes(1001))[0] == 400
    assert sentence(server, "POST", "/explore/upload") == (
        400,
        "file: needs 1 to 1000 bytes, got 0",
    )


def test_the_oldest_uploads_leave_when_they_are_too_many_and_the_error_says_so():
    kept = Explorer(Catalog([]))
    kept.uploads = BoundedStore(10)
    first, second = kept.upload(b"12345678"), kept.upload(b"1234")
    assert kept.uploaded(second) == b"1234"
    with pytest.raises(ConfigError, match="file: needs one that was uploaded"):
        kept.uploaded(first)
    assert kept.uploads.size == 4
