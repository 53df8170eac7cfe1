"""The atlas: its tiles are those of `MapPyramid`, at every length, and cost what is looked at."""

import base64
import json
import resource
import struct
import time

import pytest
import torch
from web_server import Client, running, wait_until

import regard as rg
from regard.cli.view import view
from regard.errors import ConfigError, LookError, ShapeError
from regard.inspection import MapPyramid, MapTile, Sight
from regard.web.api import create_app
from regard.web.explorer import atlas_maps
from regard.web.explorer.atlas_maps import HEADS, OpenMaps, make_demo_site
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, unpack
from regard.web.explorer.routes import parse_places
from regard.web.explorer.view_file import write_view
from regard.web.jobs import Job

TEXT = "def main(argv):\n    parser = argparse."


@pytest.fixture(scope="module")
def sight_file(tmp_path_factory):
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 2, 300, 8, generator=generator)
    site = rg.make_site(q, k, name="saved", mask=rg.Causal(), tokens=[f"t{i}" for i in range(300)])
    return Sight([site]).save(tmp_path_factory.mktemp("sight") / "long.safetensors")


@pytest.fixture(scope="module")
def explorer(sight_file):
    return Explorer(Catalog(["stdlib", "phrases", "glyphs", sight_file], device="cpu"))


@pytest.fixture(scope="module")
def server(explorer):
    with running(create_app({}, explorer=explorer)) as address:
        yield address


def split(content):
    tiles = []
    while content:
        (length,) = struct.unpack("<I", content[:4])
        tiles.append(content[4 : 4 + length])
        content = content[4 + length :]
    return tiles


def get_tiles(server, query, **headers):
    with Client(server).send("GET", f"/explore/atlas/tiles?{query}", **headers) as client:
        return client.answer()


# ---- the synthetic map


def test_the_log_sum_exp_of_the_synthetic_map_is_that_of_attend():
    site = make_demo_site(700)  # more than five chunks
    direct = rg.attend(site.q, site.k, site.k, mask=rg.Causal(), scale=1.0)[1]
    torch.testing.assert_close(site.lse, direct, rtol=1e-6, atol=1e-5)


def test_each_head_of_the_synthetic_map_does_what_its_name_says():
    site = make_demo_site(600)
    weights, tokens = site.weights()[0], site.key_tokens[0]
    same = torch.tensor([[a == b for b in tokens] for a in tokens])
    far = torch.arange(600)[:, None] - torch.arange(600) > 100
    assert HEADS == ("same word", "near tokens", "first token and full stops", "every period")
    assert float((weights[0] * same).sum(-1)[1:].mean()) > 0.5
    assert float((weights[1] * far).sum(-1).max()) < 0.2
    assert float(weights[2, 300:, 0].mean()) > 0.2
    assert weights[3, 500, 500 - 15] > 100 * weights[3, 500, 500 - 7]  # period 15


def test_a_map_of_100_000_tokens_opens_without_n_by_n_numbers(explorer):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = explorer.answer("atlas", {"model": "demo:100000"})
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (answer["queries"], answer["keys"], answer["levels"]) == (100_000, 100_000, 10)
    tile = MapTile.from_bytes(base64.b64decode(answer["overview"]))
    assert tile.values.shape == (196, 196)
    assert 0 < float(tile.values.nan_to_num(0).max()) < 1
    assert answer["progress"] == 0
    assert explorer.maps.look(answer["id"]).bytes < 128 << 20
    assert kilobytes < 1 << 20  # all weights would be 40 GB


@pytest.mark.parametrize("model", ["demo:", "demo:10", "demo:9999999", "demo:1e4", "demo:-5"])
def test_lengths_of_the_synthetic_map_are_bounded(explorer, model):
    with pytest.raises(ConfigError, match="from 16 to 262144.*try demo:100000"):
        explorer.answer("atlas", {"model": model})


# ---- tiles


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_served_tiles_are_those_of_the_pyramid_and_of_the_weights(explorer, server, reduce):
    answer = explorer.answer("atlas", {"model": "long", "head": 1})
    site = explorer.catalog.sight("long")["saved"]
    status, headers, body = get_tiles(
        server, f"id={answer['id']}&reduce={reduce}&tiles=0/0/0,0/1/0,1/0/0"
    )
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    pyramid, weights = MapPyramid(site, head=1), site.weights()[0, 1]
    first, second, coarse = tiles = split(body)
    places = [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    assert tiles == [pyramid.tile(*place, reduce=reduce).to_bytes() for place in places]
    hidden = torch.ones(300, 300).triu(1).bool()
    expected = weights.masked_fill(hidden, torch.nan)
    close = {"rtol": 1e-3, "atol": 1e-7, "equal_nan": True}
    torch.testing.assert_close(MapTile.from_bytes(first).values, expected[:256, :256], **close)
    torch.testing.assert_close(MapTile.from_bytes(second).values, expected[256:, :256], **close)
    blocks = weights.view(150, 2, 150, 2).transpose(1, 2).flatten(2)
    pooled = blocks.mean(-1) if reduce == "mean" else blocks.amax(-1)
    values = MapTile.from_bytes(coarse).values
    torch.testing.assert_close(values.nan_to_num(0), pooled, rtol=1e-3, atol=1e-7)


def test_tiles_of_the_band_are_those_of_the_pyramid(explorer, server):
    answer = explorer.answer("atlas", {"model": "long"})
    body = get_tiles(server, f"id={answer['id']}&band=1&tiles=0/1/0")[2]
    pyramid = MapPyramid(explorer.catalog.sight("long")["saved"], head=0)
    assert split(body) == [pyramid.band(0, 1, 0).to_bytes()]


def test_complete_tiles_are_kept_by_the_browser_and_previews_are_not(explorer, server):
    small = explorer.answer("atlas", {"model": "long"})["id"]
    _, headers, _ = get_tiles(server, f"id={small}&tiles=0/0/0")
    assert headers["cache-control"] == "private, max-age=31536000, immutable"
    status, again, body = get_tiles(
        server, f"id={small}&tiles=0/0/0", if_none_match=headers["etag"]
    )
    assert (status, body, again["etag"]) == (304, b"", headers["etag"])
    assert get_tiles(server, f"id={small}&tiles=0/1/0", if_none_match=headers["etag"])[0] == 200
    explorer.maps.worker, worker = None, explorer.maps.worker  # no pass: it stays a preview
    large = explorer.answer("atlas", {"model": "demo:20000"})["id"]
    _, headers, body = get_tiles(server, f"id={large}&tiles=6/0/0")
    assert headers["cache-control"] == "no-store"
    assert "etag" not in headers
    assert not MapTile.from_bytes(split(body)[0]).complete
    assert "etag" in get_tiles(server, f"id={large}&tiles=0/40/3")[1]  # computed on demand
    explorer.maps.worker = worker


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("id=gone&tiles=0/0/0", 400, "id: needs an open map, got 'gone'; try opening the view"),
        ("id={id}&tiles=0/9/0", 400, "row: needs"),
        ("id={id}&tiles=7/0/0", 400, "level: needs"),
        ("id={id}&tiles=-1/0/0", 400, "tiles: needs 1 to 16"),
        ("id={id}&tiles=" + ",".join(["0/0/0"] * 17), 400, "tiles: needs 1 to 16"),
        ("id={id}&tiles=", 400, "tiles: needs 1 to 16"),
        ("id={id}&tiles=0/0/0&reduce=sum", 422, "reduce"),
        ("tiles=0/0/0", 422, "id"),
    ],
)
def test_wrong_requests_get_a_sentence(explorer, server, query, status, text):
    map_id = explorer.answer("atlas", {"model": "long"})["id"]
    found, _, body = get_tiles(server, query.format(id=map_id))
    assert found == status
    assert text in json.loads(body)["error"]


def test_tiles_that_nobody_waits_for_are_not_computed(explorer, server, monkeypatch):
    map_id = explorer.answer("atlas", {"model": "long"})["id"]
    computed, compute = [], MapPyramid.tile

    def slow(self, *place, **options):
        computed.append(place)
        time.sleep(0.05)
        return compute(self, *place, **options)

    monkeypatch.setattr(MapPyramid, "tile", slow)
    places = ",".join(["0/0/0"] * 16)
    with Client(server).send("GET", f"/explore/atlas/tiles?id={map_id}&tiles={places}"):
        wait_until(lambda: len(computed) > 1)
    waiting = explorer.maps.worker
    wait_until(lambda: not waiting._running, 3)
    assert len(computed) < 16


def test_places_of_tiles_are_read():
    assert parse_places("9/0/0") == [(9, 0, 0)]
    with pytest.raises(ConfigError):
        parse_places("9/0/0/1")


# ---- the pass


def test_the_pass_runs_while_somebody_looks_and_then_every_tile_is_exact(explorer, server):
    body = {"model": "demo:5000", "head": 2}
    with Client(server).ask("atlas", body) as client:
        answer = json.loads(client.answer()[2])
    ask = {"id": answer["id"], "level": 4, "rows": 313, "columns": 313}

    def margins():
        with Client(server).ask("atlas.margins", ask) as client:
            return json.loads(client.answer()[2])

    wait_until(lambda: margins()["progress"] == 1)
    opened = explorer.maps.look(answer["id"])
    top = answer["levels"] - 1
    data = split(get_tiles(server, f"id={answer['id']}&tiles={top}/0/0")[2])[0]
    assert MapTile.from_bytes(data).complete
    pooled = opened.site.window(2, pool=(1 << top, 1 << top))[0]
    values = MapTile.from_bytes(data).values
    torch.testing.assert_close(values.nan_to_num(0), pooled, rtol=2e-3, atol=1e-7)
    found = margins()
    entropy = opened.site.survey(statistics=["entropy"]).entropy[0, 2]
    assert found["is_complete"]
    blocks = torch.nn.functional.pad(entropy, (0, 8)).view(-1, 16).sum(-1) / torch.tensor(
        [16] * 312 + [8]
    )
    torch.testing.assert_close(unpack(found["entropy"]), blocks, rtol=1e-3, atol=1e-4)


def test_a_pass_stops_when_nobody_looks_and_continues_later(monkeypatch):
    site = make_demo_site(5000)
    maps = OpenMaps()
    opened = maps.open("a", "a", lambda: site, 0)
    passes = atlas_maps.MapPasses()
    handle = passes.begin(opened)
    monkeypatch.setattr(atlas_maps, "STEP_SECONDS", 0.0)
    passes.step()
    opened.used_at -= 2 * atlas_maps.LOOK_SECONDS
    assert passes.step() == [(handle, opened.progress)]
    assert handle.ended
    assert not passes.running
    maps.look("a")
    again = passes.begin(opened)
    while not again.ended:
        passes.step()
    assert opened.is_complete


def test_open_maps_are_bounded_in_number_and_bytes(monkeypatch):
    maps, site = OpenMaps(), make_demo_site(300)
    for n in range(9):
        maps.open(str(n), "one", lambda: site, n % 4)
    assert len(maps) == atlas_maps.MAX_MAPS
    with pytest.raises(ConfigError, match="open map, got '0'"):
        maps.look("0")
    maps.look("3")
    monkeypatch.setattr(atlas_maps, "MAX_BYTES", 0)
    maps.open("9", "one", lambda: site, 0)
    assert len(maps) == 2  # two can be compared, whatever their size
    assert maps.look("3").head == 3


def test_heads_of_one_source_share_its_tensors(explorer):
    ids = [explorer.answer("atlas", {"model": "demo:400", "head": n})["id"] for n in (0, 1)]
    first, second = (explorer.maps.look(x) for x in ids)
    assert first.site is second.site
    assert first.id != second.id
    assert explorer.answer("atlas", {"model": "demo:400"})["id"] == ids[0]


# ---- texts, tokens, weights


def test_the_map_of_a_text_is_that_of_its_recording(explorer):
    body = {"model": "stdlib", "text": TEXT, "site": "decoder.1.self", "head": 2}
    answer = explorer.answer("atlas", body)
    site = explorer.catalog.run("stdlib").text_model.look(TEXT)["decoder.1.self"]
    values = MapTile.from_bytes(base64.b64decode(answer["overview"])).values.nan_to_num(0)
    torch.testing.assert_close(values, site.weights()[0, 2], rtol=1e-3, atol=1e-6)
    assert [x["name"] for x in answer["sites"]] == [f"decoder.{n}.self" for n in range(4)]
    assert answer["sites"][1]["heads"] == ["0", "1", "2", "3", "4", "5"]
    last = explorer.answer("atlas", {"model": "stdlib", "text": TEXT})
    assert (last["site"], last["head"]) == ("decoder.3.self", 0)


def test_a_long_file_is_read_with_one_attention_recorded(explorer, monkeypatch):
    text = TEXT * 20
    monkeypatch.setattr("regard.web.explorer.views.atlas.MAX_WHOLE", 100)
    file = explorer.upload(text.encode())
    answer = explorer.answer("atlas", {"model": "stdlib", "file": file, "site": "decoder.0.self"})
    direct = explorer.catalog.run("stdlib").text_model.look(text)["decoder.0.self"]
    opened = explorer.maps.look(answer["id"])
    assert opened.site.query_tokens == direct.query_tokens
    torch.testing.assert_close(opened.site.q, direct.q)
    with pytest.raises(ConfigError, match="for an encoder-decoder, got 760; try a language model"):
        explorer.answer("atlas", {"model": "phrases", "file": file, "to": "de", "target": "x"})


def test_tokens_are_served_in_ranges_and_found(explorer):
    map_id = explorer.answer("atlas", {"model": "long"})["id"]
    answer = explorer.answer("atlas.tokens", {"id": map_id, "start": 298, "stop": 400})
    assert answer == {"tokens": ["t298", "t299"]}  # the last ones
    answer = explorer.answer("atlas.tokens", {"id": map_id, "start": 10, "stop": 12})
    assert answer == {"tokens": ["t10", "t11"]}
    with pytest.raises(ConfigError, match="stop: needs 1 to 512 more than start, got 513"):
        explorer.answer("atlas.tokens", {"id": map_id, "start": 0, "stop": 513})
    exact = explorer.answer("atlas.search", {"id": map_id, "text": "t29"})
    assert exact == {"positions": [29], "count": 1, "is_exact": True}
    inside = explorer.answer("atlas.search", {"id": map_id, "text": "29"})
    assert inside["positions"] == [29, 129, 229, *range(290, 300)]
    assert explorer.answer("atlas.search", {"id": map_id, "text": "zebra"})["count"] == 0


def test_a_weight_has_the_terms_of_its_breakdown(explorer):
    map_id = explorer.answer("atlas", {"model": "long", "head": 1})["id"]
    answer = explorer.answer("atlas.cell", {"id": map_id, "query": 250, "key": 3})
    direct = explorer.catalog.sight("long")["saved"].breakdown(1, 250, 3)
    for name in ("dot", "scale", "scaled", "bias", "score", "lse", "weight"):
        assert answer[name] == getattr(direct, name), name
    assert answer["tokens"] == ["t250", "t3"]
    hidden = explorer.answer("atlas.cell", {"id": map_id, "query": 3, "key": 250})
    assert (hidden["allowed"], hidden["score"], hidden["weight"]) == (False, None, 0)
    with pytest.raises(ShapeError, match="key"):
        explorer.answer("atlas.cell", {"id": map_id, "query": 3, "key": 300})


def test_mistakes_are_said(explorer):
    for body, error, text in (
        ({"model": "stdlib"}, ConfigError, "text: needs a text, or a file with one, got neither"),
        ({"model": "glyphs"}, ConfigError, "which reads image; try demo"),
        ({"model": "demo:100", "head": 4}, LookError, "less than the 4 heads"),
        ({"model": "stdlib", "text": TEXT, "site": "x"}, LookError, "site: needs one of decoder"),
        ({"model": "stdlib", "file": "x"}, ConfigError, "file: needs one that was uploaded"),
        ({"model": "stdlib", "file": explorer.upload(b"\xff\xfe")}, ConfigError, "UTF-8"),
    ):
        with pytest.raises(error, match=text):
            explorer.answer("atlas", body)


def test_the_table_has_both_margins(explorer):
    text = explorer.csv(find_query("atlas"), {"model": "long"}, Job())
    lines = text.splitlines()
    assert lines[0] == "side,first,last,mean"
    assert len(lines) == 1 + 150 + 150
    received = explorer.catalog.sight("long")["saved"].survey(statistics=["received"]).received
    side, first, last, mean = lines[151].split(",")
    assert (side, first, last) == ("key", "0", "1")
    assert float(mean) == pytest.approx(float(received[0, 0, :2].mean()), rel=1e-4)


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_link_can_be_written_to_a_file(explorer, tmp_path, suffix):
    params = {
        "model": "demo:2000",
        "head": "3",
        "x": "50.5",
        "z": "1.5",
        "log": "0",
        "keep": "zoom",
    }
    path = write_view(explorer, "atlas", params, tmp_path / f"map.{suffix}")
    content = path.read_text()
    assert "every period" in content
    assert len(content) > 10_000


def test_the_command_line_writes_a_synthetic_map(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view("atlas", ["model=demo:300", "head=1"], tmp_path / "map.json", tmp_path / "runs")
    assert json.loads((tmp_path / "map.json").read_text())["title"].endswith("near tokens")
