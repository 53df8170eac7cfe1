"""Two sights compared, against maps compared by hand."""

import json
import math
import re

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection import compare_sights


def sight_of(model, ids, tokens=None):
    with torch.no_grad(), rg.look(model, tokens=tokens) as sight:
        model(torch.tensor([ids]))
    return sight


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return rg.models.LanguageModel(rg.models.language_tiny(vocab=30)).eval()


def test_distance_is_half_the_absolute_difference(model):
    a, b = sight_of(model, [3, 4, 5, 6, 7]), sight_of(model, [3, 9, 5, 6, 7])
    found = compare_sights(a, b)
    w, other = (x["decoder.1.self"].weights()[0] for x in (a, b))
    expected = 0.5 * (w - other).abs().sum(-1).mean(-1)
    rows = [row for row in found.rows if row.site == "decoder.1.self"]
    assert [row.distance for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found.top(1)[0].distance == max(row.distance for row in found.rows)
    assert found.to_dicts()[0]["distance"] == found.top(1)[0].distance


def test_statistics_and_the_largest_change_are_those_of_the_maps(model):
    a, b = sight_of(model, [3, 4, 5, 6, 7]), sight_of(model, [3, 9, 5, 6, 7])
    row = next(x for x in compare_sights(a, b).rows if (x.site, x.head) == ("decoder.1.self", 2))
    w, other = (x["decoder.1.self"].weights()[0, 2].double() for x in (a, b))
    positions = torch.arange(5)
    distances = (positions[:, None] - positions).abs()
    for name, of in {
        "entropy": lambda w: -(w * w.clamp(min=1e-30).log()).sum(-1),
        "first_share": lambda w: w[:, 0],
        "previous_share": lambda w: torch.cat([w.new_zeros(1), w.diagonal(-1)]),
        "self_share": lambda w: w.diagonal(),
        "mean_distance": lambda w: (w * distances).sum(-1),
    }.items():
        expected = float(of(other).mean() - of(w).mean())
        assert getattr(row, name) == pytest.approx(expected, abs=1e-5), name
    i, j = divmod(int((other - w).abs().argmax()), 5)
    assert (row.query, row.key) == (str(i), str(j))
    assert (row.before, row.after) == pytest.approx((float(w[i, j]), float(other[i, j])), abs=1e-5)


def test_tokens_align_texts_of_other_lengths(model):
    words = {3: "the", 4: "cat", 5: "sat", 9: "old"}
    ids, longer = [3, 4, 5], [3, 9, 4, 5]
    a, b = (sight_of(model, x, [words[i] for i in x]) for x in (ids, longer))
    row = compare_sights(a, b).rows[2]
    w, other = (x["decoder.0.self"].weights()[0, 2] for x in (a, b))
    other, extra = other[[0, 2, 3]][:, [0, 2, 3]], other[[0, 2, 3]][:, 1]
    expected = 0.5 * ((w - other).abs().sum(-1) + extra).mean()
    assert row.distance == pytest.approx(float(expected), abs=1e-5)


def test_another_checkpoint_and_another_model_by_depth(model):
    torch.manual_seed(1)
    second = rg.models.LanguageModel(rg.models.language_tiny(vocab=30)).eval()
    assert len(compare_sights(sight_of(model, [3, 4]), sight_of(second, [3, 4])).rows) == 8
    encoder = rg.models.Classifier(rg.models.classifier_tiny(vocab=30, classes=2)).eval()
    assert len(compare_sights(sight_of(model, [3, 4]), sight_of(encoder, [3, 4])).rows) == 8


def test_a_replaced_word_is_aligned_with_its_replacement(model):
    a = sight_of(model, [3, 4, 5], ["the", "cat", "sat"])
    b = sight_of(model, [3, 9, 5], ["the", "dog", "sat"])
    found = compare_sights(a, b)
    assert [t.label for t in found.pairs["decoder.0.self"].keys] == ["the", "cat | dog", "sat"]
    w, other = (x["decoder.0.self"].weights()[0, 1] for x in (a, b))
    assert_close(found.maps("decoder.0.self", 1), torch.stack([w, other, other - w]))


def test_maps_of_long_texts_are_pooled_over_the_tokens_of_both(model):
    words = [f"w{i}" for i in range(300)]
    longer = [*words[:100], "new", *words[100:]]
    ids = torch.arange(300) % 30
    a = sight_of(model, ids.tolist(), words)
    b = sight_of(model, [*ids[:100].tolist(), 7, *ids[100:].tolist()], longer)
    found = compare_sights(a, b)
    full, pooled = (found.maps("decoder.1.self", 3, pool) for pool in ((1, 1), (2, 2)))
    assert full.shape == (3, 301, 301)
    assert full[0, 100].isnan().all()
    assert_close(full[1], b["decoder.1.self"].weights()[0, 3])
    cells = full[0, :100, :300].unflatten(0, (50, 2)).unflatten(2, (150, 2)).mean((1, 3))
    assert_close(pooled[0, :50, :150], cells)


def test_a_page_and_a_figure_show_both_texts(model, tmp_path):
    a = sight_of(model, [3, 4, 5], ["the", "cat", "<b>"])
    b = sight_of(model, [3, 9, 4, 5], ["the", "old", "cat", "<b>"])
    found = compare_sights(a, b, names=("one", "two"))
    page = rg.inspection.write_comparison(found, tmp_path / "both.html", count=1).read_text()
    held = json.loads(re.findall(r'id="saved">(.*?)</script>', page)[0])
    texts, maps, heads = held["responses"][0]["response"]["sections"]
    assert ["old", "second only"] in texts["blocks"][1]["items"]
    assert ["<b>", ""] in texts["blocks"][1]["items"]
    assert heads["blocks"][0]["rows"][0][0].startswith("decoder.")
    for block, want in zip(maps["blocks"], found.maps(*_most(found)), strict=True):
        got = torch.tensor([[math.nan if x is None else x for x in row] for row in block["values"]])
        assert_close(got, want, atol=1e-5, rtol=0, equal_nan=True)
    assert "<b>&lt;" not in page
    assert "&lt;b&gt;" in page
    assert (
        rg.inspection.write_comparison(found, tmp_path / "both.png", count=1).stat().st_size
        > 10_000
    )
    assert rg.draw.comparison(found, count=1).axes[1].get_title() == "two"


def _most(comparison):
    (row,) = comparison.top(1)
    return row.site, row.head


def test_what_cannot_be_compared_is_refused(model):
    with pytest.raises(LookError, match="needs tokens to align texts of 2 and 3 positions"):
        compare_sights(sight_of(model, [3, 4]), sight_of(model, [3, 4, 5]))
    deep = rg.models.LanguageModel(rg.models.language_small(vocab=30, layers=3)).eval()
    other = rg.models.Classifier(rg.models.classifier_tiny(vocab=30, classes=2)).eval()
    with pytest.raises(LookError, match="got 3 such as decoder.0.self and 2 such as encoder.0"):
        compare_sights(sight_of(deep, [3, 4]), sight_of(other, [3, 4]))
    with pytest.raises(ShapeError, match="by: needs one of distance, entropy"):
        compare_sights(sight_of(model, [3]), sight_of(model, [3])).top(by="peak")
    with pytest.raises(LookError, match="needs texts with a token in common"):
        compare_sights(sight_of(model, [3, 4], ["a", "b"]), sight_of(model, [5, 6], ["c", "d"]))
