"""Scores of heads, against maps read cell by cell in Python."""

import pytest
import torch

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection import make_site, score_heads
from regard.inspection.heads.patterns import PATTERNS, pattern_scores
from regard.inspection.sites.site import Site

TEXT = [*"abcaadeadcabead"]


def by_hand(w: torch.Tensor, tokens: list[str], name: str) -> tuple[list[float], list[int]]:
    """The score of each query that counts, and which queries do; w is (query, key)."""
    scores, counted = [], []
    for i in range(len(tokens)):
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        keys = {
            "induction": [j for j in range(1, i) if tokens[j - 1] == tokens[i]],
            "previous": [i - 1] if i else [],
            "duplicate": [j for j in range(i) if tokens[j] == tokens[i]],
            "retrieval": [j for j in range(i) if tokens[j] == after],
            "sink": [0] if i else [],
        }[name]
        if keys and i:
            weight = sum(float(w[i, j]) for j in keys)
            scores.append(float(w[i].argmax() in keys) if name == "retrieval" else weight)
            counted.append(i)
    return scores, counted


def site_of(weights: torch.Tensor, tokens: list[str]) -> Site:
    """A site with exactly these weights: k is the identity, so q is their logarithm."""
    n = len(tokens)
    return make_site(weights.log() * n**0.5, torch.eye(n).to(weights), tokens=tokens)


@pytest.mark.parametrize("name", PATTERNS)
def test_scores_are_those_of_the_map_read_cell_by_cell(name):
    torch.manual_seed(0)
    w = torch.randn(len(TEXT), len(TEXT), dtype=torch.double).mul(3).tril().exp().tril()
    w = w / w.sum(-1, keepdim=True)
    found = pattern_scores(site_of(w.clamp(min=1e-300), TEXT), [name])[name]
    scores, counted = by_hand(w, TEXT, name)
    assert found.counted[0, 0].nonzero()[:, 0].tolist() == counted
    assert found.score[0, 0][counted].tolist() == pytest.approx(scores, abs=1e-12)
    assert len(counted) > 5


def test_one_map_by_hand():
    # a b a: the last a on b is induction, on the first a duplicate
    w = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.7, 0.1]], dtype=torch.double)
    found = pattern_scores(site_of(w.clamp(min=1e-30), ["a", "b", "a"]), [*PATTERNS])
    means = {k: float(x.score[x.counted].mean()) for k, x in found.items()}
    assert means["induction"] == pytest.approx(0.7)
    assert means["duplicate"] == pytest.approx(0.2)
    assert means["previous"] == pytest.approx((0.5 + 0.7) / 2)
    assert means["sink"] == pytest.approx((0.5 + 0.2) / 2)
    assert means["retrieval"] == 1.0  # at b, where the next token is a, the first a ties


@pytest.fixture(scope="module")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=700)
    config.bos_token_id, config.eos_token_id = 3, None
    return GPT2LMHeadModel(config).double().eval()


def test_a_model_of_transformers_against_its_eager_maps(gpt2):
    torch.manual_seed(1)
    ids = torch.randint(40, (2, 600))  # more than a tile of keys
    gpt2.set_attn_implementation("eager")
    with torch.no_grad():
        maps = gpt2(ids, output_attentions=True).attentions
    gpt2.set_attn_implementation("sdpa")
    heads = score_heads(gpt2, ids)
    row = heads["transformer.h.1.attn", 2]
    columns = {"previous": row.previous_share, "sink": row.sink_share}
    columns |= {name: getattr(row, name) for name in ("induction", "duplicate", "retrieval")}
    for name, value in columns.items():
        scores = [
            x
            for batch in range(2)
            for x in by_hand(maps[1][batch, 2], [str(i) for i in ids[batch].tolist()], name)[0]
        ]
        assert value == pytest.approx(sum(scores) / len(scores), abs=1e-9), name


def test_padding_and_batches_do_not_change_the_scores(gpt2):
    short = torch.tensor([[3, 5, 7, 5, 7, 5]])
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), short], 1)
    inputs = {"input_ids": padded, "attention_mask": (torch.arange(9) > 2).long()[None]}
    inputs["position_ids"] = (torch.arange(9) - 3).clamp(min=0)[None]
    for a, b in zip(score_heads(gpt2, short), score_heads(gpt2, inputs), strict=True):
        assert a.induction == pytest.approx(b.induction, abs=1e-6)
        assert a.sink_share == pytest.approx(b.sink_share, abs=1e-6)


def test_retrieval_copies_from_the_needle_for_the_answer_only():
    # positions: needle k v, filler, question k, answer v
    tokens = ["k", "v", "x", "v", "k", "v"]
    w = torch.full((6, 6), 1e-9, dtype=torch.double).tril()
    w[4, 1] = w[0, 0] = w[1, 0] = w[2, 1] = w[3, 0] = w[5, 0] = 1.0
    site = site_of(w.clamp(min=1e-300), tokens)
    span = {"needle": slice(0, 2), "answer": slice(5, 6)}
    found = pattern_scores(site, ["retrieval"], **span)["retrieval"]
    assert found.counted[0, 0].nonzero()[:, 0].tolist() == [4]
    assert float(found.score[0, 0, 4]) == 1.0
    other = pattern_scores(site, ["retrieval"], needle=slice(2, 4), answer=slice(5, 6))
    assert float(other["retrieval"].score[0, 0, 4]) == 0.0


def test_the_table_sorts_prints_and_draws(gpt2, tmp_path):
    heads = score_heads(gpt2, length=8)
    best = heads.top(3, by="previous")
    shares = [row.previous_share for row in heads]
    assert [row.previous_share for row in best] == sorted(shares, reverse=True)[:3]
    assert str(best).splitlines()[0].split()[3:] == [*PATTERNS]
    figure = rg.draw.head_scores(heads, path=tmp_path / "scores.png")
    assert [axes.get_title() for axes in figure.axes[:5]] == [*PATTERNS]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()][1] == "transformer.h.1.attn"
    assert figure.axes[0].get_xlabel() == "head"


@pytest.mark.usefixtures("users_view")
def test_what_cannot_be_scored_is_refused(gpt2):
    translator = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    with pytest.raises(ShapeError, match="inputs: needs the token ids that Translator"):
        score_heads(translator)
    inputs = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])
    with pytest.raises(LookError, match="at: needs self-attentions"):
        score_heads(translator, inputs, at="*.cross")
    with pytest.raises(ShapeError, match="by: needs a number of a head, got 'inducton'; try indu"):
        score_heads(gpt2, length=4).top(by="inducton")
    with pytest.raises(LookError, match="needs a self-attention with tokens"):
        pattern_scores(make_site(*torch.zeros(2, 3, 4)), ["sink"])


def test_random_tokens_fit_the_positions_of_the_model():
    config = rg.models.language_tiny(vocab=20, positions="learned", max_positions=21)
    assert len(score_heads(rg.models.LanguageModel(config).eval())) == 8
