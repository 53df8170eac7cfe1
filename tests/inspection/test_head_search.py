"""Examples of heads in texts, against every cell of every map."""

import pytest
import torch

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection import look, score_heads, search_heads
from regard.inspection.attribution.head_scores import _mark

TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8], [9], [7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3], [1, 1]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()


def cells(model, by):
    """All (weight, text, query, key) of a pattern in head 2 of the last site."""
    found = []
    for number, ids in enumerate(TEXTS):
        with look(model) as sight, torch.no_grad():
            model(torch.tensor([ids]))
        w = sight["decoder.1.self"].weights()[0, 2]
        for i in range(len(ids)):
            for j in range(i):
                same = {"induction": j > 0 and ids[j - 1] == ids[i], "previous": j == i - 1}
                if same[by]:
                    found.append((float(w[i, j]), number, i, j))
    return found


@pytest.mark.parametrize("by", ["induction", "previous"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_examples_are_the_heaviest_cells_of_each_text(model, by, batch_size):
    found = search_heads(model, None, TEXTS, by=by, count=3, batch_size=batch_size)
    best: dict[int, tuple] = {}
    for cell in cells(model, by):
        best[cell[1]] = max(cell, best.get(cell[1], cell))
    expected = sorted(best.values(), reverse=True)[:3]
    got = found.of("decoder.1.self", 2)
    assert [(x.text, x.query, x.key) for x in got] == [cell[1:] for cell in expected]
    assert [x.weight for x in got] == pytest.approx([cell[0] for cell in expected], abs=1e-5)
    assert found.tokens == sum(len(ids) for ids in TEXTS if len(ids) > 1)


def test_means_are_the_scores_of_score_heads(model):
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1]
    heads = score_heads(model, torch.tensor([ids]))
    for by in ("induction", "duplicate", "retrieval"):
        means = search_heads(model, None, [ids], by=by).means
        for row in heads:
            assert means[row.site, row.head] == pytest.approx(getattr(row, by), abs=1e-6)


def test_a_statistic_finds_its_largest_queries(model):
    found = search_heads(model, None, TEXTS, by="entropy", count=1)
    with look(model) as sight, torch.no_grad():
        model(torch.tensor([TEXTS[3]]))
    largest = sight["decoder.0.self"].survey().entropy[0, 1].max()
    (example,) = found.of("decoder.0.self", 1)
    assert example.text == 3  # the longest text
    assert example.value == pytest.approx(float(largest), abs=1e-5)


def test_a_long_text_is_read_in_windows_and_only_the_best_are_kept(model):
    torch.manual_seed(0)
    long = torch.randint(10, (1000,)).tolist()
    found = search_heads(model, None, iter([long]), count=2, max_length=64)
    assert found.tokens == 1000
    assert len(found.of("decoder.0.self", 0)) == 2
    for x in found.examples:
        assert long[x.key - 1] == long[x.query]
        assert (x.query_token, x.key_token) == (str(long[x.query]), str(long[x.key]))
        assert x.query // 64 == x.key // 64
    assert "key in «», query in []" in repr(found)


def test_query_and_key_are_marked_in_the_text_of_any_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"play": 0, "##ing": 1, "the": 2, "game": 3, "[UNK]": 4}
    inner = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    ids = tokenizer("the game playing the game").input_ids
    assert _mark(tokenizer.decode, ids, 4, 3) == "the game play«ing» [the] game"
    far = tokenizer("the game " * 30).input_ids
    assert _mark(tokenizer.decode, far, 50, 1).count(" … ") == 1


@pytest.mark.usefixtures("users_view")
def test_wrong_searches_are_refused(model):
    with pytest.raises(ShapeError, match="by: needs one of induction.*got 'inducton'; try indu"):
        search_heads(model, None, TEXTS, by="inducton")
    with pytest.raises(ShapeError, match="texts: needs token ids without a tokenizer"):
        search_heads(model, None, ["a text"])
    with pytest.raises(LookError, match="texts: needs one with two tokens or more"):
        search_heads(model, None, [[1]])
    with pytest.raises(LookError, match="needs a head that was searched"):
        search_heads(model, None, TEXTS).of("decoder.0.self", 9)
    with pytest.raises(ShapeError, match="count, batch_size, max_length: need 1, 1 and 2"):
        search_heads(model, None, TEXTS, count=0)
