"""The cost view: its numbers are those of `rg.cost`."""

import time

import pytest
import torch

import regard as rg
from regard.errors import ConfigError
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query
from regard.web.jobs import Job


@pytest.fixture(scope="module")
def explorer():
    return Explorer(Catalog(["phrases", "glyphs"]))


def build(config):
    with torch.device("meta"):
        return rg.models.build(config)


def test_parts_are_those_of_rg_cost(explorer):
    body = {"model": "translator_base", "source": 300, "target": 20, "vocab": 1000, "batch": 2}
    answer = explorer.answer("cost", body)
    direct = rg.cost(build(rg.models.translator_base(vocab=1000)), 300, 20, 2)
    assert [part["name"] for part in answer["parts"]] == [part.name for part in direct.parts]
    for part, expected in zip(answer["parts"], direct.parts, strict=True):
        names = ("formula", "parameters", "multiply_adds", "bytes_moved", "cache_bytes")
        for name in (*names, "activation_bytes"):
            assert part[name] == getattr(expected, name), (part["name"], name)
    assert answer["totals"]["parameters"] == direct.parameters
    assert answer["flops"] == direct.flops


def test_a_model_of_the_catalog_costs_what_its_weights_say(explorer):
    answer = explorer.answer("cost", {"model": "phrases"})
    model = explorer.catalog.run("phrases").model
    assert answer["totals"]["parameters"] == rg.cost(model).parameters
    assert answer["totals"]["weight_bytes"] == 4 * sum(x.numel() for x in model.parameters())


def test_a_width_keeps_the_ratio_of_the_feed_forward(explorer):
    answer = explorer.answer("cost", {"model": "language_small", "dim": 512, "layers": 2})
    config = rg.models.language_small(vocab=32000)
    wider = rg.models.language_small(
        vocab=32000, dim=512, layers=2, ffn_dim=config.ffn_dim and 2 * config.ffn_dim
    )
    assert answer["totals"]["parameters"] == rg.cost(build(wider)).parameters
    assert answer["sizes"] | {"dim": 512, "layers": 2} == answer["sizes"]


def test_maps_take_four_bytes_per_head_query_and_key(explorer):
    body = {"model": "translator_base", "source": 100, "target": 7, "layers": 2}
    parts = explorer.answer("cost", body)["parts"]
    maps = {part["name"]: part["map_bytes"] for part in parts if part["map_bytes"]}
    assert maps == {
        "encoder self-attention": 4 * 2 * 8 * 100 * 100,
        "decoder self-attention": 4 * 2 * 8 * 7 * 7,
        "cross-attention": 4 * 2 * 8 * 7 * 100,
    }


@pytest.mark.parametrize(
    "body", [{"model": "language_base"}, {"model": "translator_tiny"}, {"model": "vision_base"}]
)
def test_attention_overtakes_the_feed_forward_at_the_crossing_and_not_before(explorer, body):
    answer = explorer.answer("cost.curves", body)
    model = rg.runs.build_or_load_model(body["model"])

    def exceeds(length):
        parts = rg.cost(model, length, length).parts
        of = {kind: sum(p.multiply_adds for p in parts if kind in p.name)
              for kind in ("attention", "feed-forward")}  # fmt: skip
        return of["attention"] > of["feed-forward"]

    assert exceeds(answer["crossing"])
    assert not exceeds(answer["crossing"] - 1)
    assert f"{answer['crossing']:,}" in answer["sentence"]


def test_attention_of_width_d_overtakes_a_feed_forward_of_4d_beyond_2d(explorer):
    # 4nd² + 2n²d > 8nd² where n > 2d
    assert explorer.answer("cost.curves", {"model": "language_base"})["crossing"] == 2 * 768 + 1


def test_a_curve_has_the_sums_of_the_parts(explorer):
    answer = explorer.answer("cost.curves", {"model": "translator_tiny"})
    at = answer["lengths"].index(256)
    parts = explorer.answer("cost", {"model": "translator_tiny", "source": 256, "target": 256})
    sums = [answer[x][at] for x in ("attention", "feed_forward", "recurrence", "other")]
    assert sum(sums) == parts["totals"]["multiply_adds"]
    assert answer["cache_bytes"][at] == parts["totals"]["cache_bytes"]
    assert answer["map_bytes"][at] == parts["totals"]["map_bytes"]


def test_models_without_attention_or_feed_forward_say_so(explorer):
    answer = explorer.answer("cost.curves", {"model": "recurrent_tiny"})
    assert answer["rival"] == "recurrence"
    assert "the recurrence" in answer["sentence"]


def test_a_slider_is_followed(explorer):
    seconds = []
    for layers in (2, 3, 4, 5, 6):
        start = time.perf_counter()
        explorer.answer("cost", {"model": "translator_base", "layers": layers})
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.1  # the others may have waited for the machine


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"model": "translator_bass"}, "try translator_base"),
        ({"model": "../phrases"}, "model: needs one of"),
        ({"dim": 100, "heads": 8}, "dim: needs a multiple of heads=8, got 100"),
        ({"source": 0}, "source: needs to be valid: input should be greater than or equal to 1"),
        ({"layers": 1000}, "layers: needs to be valid: input should be less than or equal to 128"),
        ({"width": 3}, "width: needs to be valid: extra inputs are not permitted"),
    ],
)
def test_mistakes_are_named(explorer, body, text):
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        explorer.answer("cost", body)


def test_sliders_offer_the_present_values_and_heads_that_divide_the_width(explorer):
    answer = explorer.answer(
        "cost", {"model": "translator_base", "source": 77, "dim": 100, "heads": 5}
    )
    assert all(answer["sizes"][name] in values for name, values in answer["choices"].items())
    assert all(100 % heads == 0 for heads in answer["choices"]["heads"])


def test_images_are_measured_by_their_side(explorer):
    answer = explorer.answer("cost", {"model": "glyphs"})
    assert answer["unit"] == "pixels of a side"
    assert "vocab" not in answer["choices"]
    patch = explorer.catalog.run("glyphs").model.config.patch_size
    assert all(side % patch == 0 for side in answer["choices"]["source"])


def test_the_table_ends_with_the_totals(explorer):
    text = explorer.csv(find_query("cost"), {"model": "translator_tiny"}, Job())
    rows = [line.split(",") for line in text.splitlines()]
    assert rows[0][:3] == ["part", "formula", "parameters"]
    assert int(rows[-1][2]) == sum(int(row[2]) for row in rows[1:-1])


def test_the_figure_has_a_bar_for_each_part_and_quantity(explorer):
    answer = explorer.answer("cost", {"model": "language_tiny"})
    query = find_query("cost")
    assert query.figure is not None
    [axes] = query.figure(answer).axes
    shown = sum(1 for x in answer["totals"].values() if x)
    assert len(axes.patches) == shown * len(answer["parts"])


def test_a_transformers_model_has_fixed_sizes(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "small")
    explorer = Explorer(Catalog([tmp_path / "small"]))
    answer = explorer.answer("cost", {"model": "small", "source": 40})
    assert not answer["is_editable"]
    assert answer["sizes"]["dim"] == 32
    assert answer["totals"]["map_bytes"] == 4 * 2 * 2 * 40 * 40
    curves = explorer.answer("cost.curves", {"model": "small"})
    assert curves["crossing"] == 2 * 32 + 1
