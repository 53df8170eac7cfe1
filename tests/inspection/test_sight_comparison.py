"""Two sights compared, against maps compared by hand."""

import pytest
import torch

import regard as rg
from regard.errors import LookError
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
    assert "distance of maps" in repr(found)


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


def test_what_cannot_be_compared_is_refused(model):
    with pytest.raises(LookError, match="needs tokens to align texts of 2 and 3 positions"):
        compare_sights(sight_of(model, [3, 4]), sight_of(model, [3, 4, 5]))
    with pytest.raises(LookError, match="needs texts with a token in common"):
        compare_sights(sight_of(model, [3, 4], ["a", "b"]), sight_of(model, [5, 6], ["c", "d"]))
