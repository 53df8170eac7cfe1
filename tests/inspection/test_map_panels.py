"""Panels of linear mixers and experts on a page: the numbers are those of the library."""

import sys
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch

import regard as rg
from regard.inspection.report.report import map_panels

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tiny_models import IDS, make  # noqa: E402


def unpack(panel_map):
    shape = len(panel_map["rows"]), len(panel_map["columns"])
    packed = np.frombuffer(b64decode(panel_map["data"]), dtype="<u2").astype(float)
    return torch.from_numpy((packed / 32767 - 1) * panel_map["scale"]).view(shape).float()


def look(kind, ids=IDS, activations=None):
    model = make(kind)
    with torch.no_grad(), rg.look(model, activations=activations) as sight:
        model(ids)
    return sight


def check(panel_map, expected):
    error = (unpack(panel_map) - expected.float()).abs().max()
    assert error <= panel_map["scale"] / 32767 + 1e-7


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next", "lfm2", "jamba"])
def test_maps_of_mixers_are_their_windows(kind, tmp_path):
    sight = look(kind)
    (panel,) = map_panels(sight, batch=1, queries=[])
    assert len(panel["maps"]) == len(panel["rows"]) == len(sight.mixer_heads())
    for row, panel_map in zip(panel["rows"], panel["maps"], strict=True):
        site, head = sight[row[0]], int(row[1])
        check(panel_map, site.window(head)[1])
        assert panel_map["title"] == f"{row[0]}, head {head}"
    page = rg.inspection.write_report(sight, tmp_path / "page.html").read_text()
    assert f"<caption>Linear mixers</caption><tr><th>{panel['columns'][0]}" in page


@pytest.mark.parametrize(("queries", "start"), [([], 136), ([20], 0), ([-35], 133), ([50], 18)])
def test_a_long_text_is_shown_around_a_query(queries, start):
    sight = look("mamba2", IDS.view(1, -1).repeat(1, 9)[:, :200])
    (panel,) = map_panels(sight, 0, queries)
    near = slice(start, start + 64)
    check(panel["maps"][1], sight.mixers[0].window(1, near, near)[0])
    assert panel["maps"][1]["title"].endswith(f"queries {start}–{start + 63} of 200")


def test_a_mixer_that_is_called_twice_has_a_map_per_call(tmp_path):
    sight = look("zamba")
    (panel,) = map_panels(sight, 0, [])
    names = [row[0] for row in panel["rows"]]
    first, second = sight.calls("model.layers.0.mamba")
    assert names.count(first.name) == names.count(f"{first.name} (call 1)") == first.heads
    check(panel["maps"][names.index(f"{first.name} (call 1)")], second.window(0)[0])
    rg.inspection.write_report(sight, tmp_path / "page.html")
    model = make("zamba")
    results = {x.name: x for x in rg.inspection.verify(model, {"input_ids": IDS[:1]}).results}
    assert results["mixers"].status == "ok"


def test_maps_of_experts_are_their_weights():
    sight = look("mixtral", activations="*.router.*")
    (panel,) = map_panels(sight, batch=0, queries=[])
    assert panel["rows"] == sight.routers.texts()
    for panel_map, router in zip(panel["maps"], sight.routers.values(), strict=True):
        check(panel_map, router.map[0].mT)
        assert not panel_map["signed"]
