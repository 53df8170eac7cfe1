import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection.sites.site import Site, select_head
from regard.ops import biases
from regard.ops.masks import Mask
from regard.ops.terms import make_terms


def site(batch=2, heads=4, kv_heads=2, queries=5, keys=7, head_dim=3, value=3, **terms) -> Site:
    q = torch.randn(batch, heads, queries, head_dim)
    k, v = torch.randn(batch, kv_heads, keys, head_dim), torch.randn(batch, kv_heads, keys, value)
    out, lse = rg.attend(q, k, v, **terms)
    made = make_terms(q, k, **terms)
    return Site(name="here", path="here", q=q, k=k, v=v, out=out, lse=lse, terms=made)


class Odd(Mask):
    """A mask of a caller's own, different for each head."""

    def at(self, b, h, i, j):
        return (j + h) % 2 == 0


TERMS = {
    "plain": {},
    "causal": {"mask": rg.Causal(), "offset": 2},
    "padding": {"mask": rg.Padding(torch.tensor([7, 3])) & rg.Local(4)},
    "dense": {"mask": torch.rand(2, 4, 5, 7) > 0.3},
    "own": {"mask": Odd()},
    "softcap": {"softcap": 0.5, "scale": 2.0},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, 2.0, 3.0])},
    "alibi": {"bias": rg.ALiBi(rg.ops.alibi_slopes(4))},
    "relative": {"bias": rg.RelativeKeys(torch.randn(9, 3)), "offset": 1},
    "toeplitz": {"bias": rg.Toeplitz(torch.randn(4, 9)) + biases.DenseBias(torch.randn(4, 5, 7))},
    "buckets": {"bias": rg.Buckets(torch.randn(8, 4))},
    "score": {"score": lambda q, k: torch.tanh(q.sum(-1)[..., :, None] - k.sum(-1)[..., None, :])},
}
every_term = pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)


def test_the_terms_of_a_cell_by_hand():
    q, k = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0], [0.0, 0.0]])
    v = torch.tensor([[10.0], [0.0]])
    out, lse = rg.attend(q[None, None], k[None, None], v[None, None], scale=0.2)
    terms = make_terms(q[None, None], k[None, None], scale=0.2)
    here = Site(
        name="x",
        path="x",
        q=q[None, None],
        k=k[None, None],
        v=v[None, None],
        out=out,
        lse=lse,
        terms=terms,
    )
    cell = here.breakdown(head=0, query=0, key=0)
    e = torch.e
    assert cell.products is not None
    assert cell.products.tolist() == [3.0, 2.0]
    assert (cell.dot, cell.scaled, cell.bias, cell.allowed, cell.score) == (5, 1, 0, True, 1)
    assert cell.lse == pytest.approx(torch.log(torch.tensor(e + 1)).item())
    assert cell.weight == pytest.approx(e / (e + 1))
    assert cell.contribution.item() == pytest.approx(10 * e / (e + 1))


@every_term
def test_a_cell_adds_up_and_is_the_weight_in_the_map(terms):
    here = site(**terms)
    w = here.weights()
    for batch, head, query, key in [(0, 0, 0, 0), (1, 3, 4, 2), (1, 1, 2, 6), (0, 2, 3, 1)]:
        cell = here.breakdown(head, query, key, batch)
        if cell.products is not None:
            assert cell.dot == cell.products.sum().item()
            assert cell.scaled == cell.scale * cell.dot
        cap = cell.softcap
        capped = cell.scaled if cap is None else cap * torch.tensor(cell.scaled / cap).tanh().item()
        assert cell.capped == pytest.approx(capped, rel=1e-6)
        assert cell.score == (cell.capped + cell.bias if cell.allowed else -torch.inf)
        assert cell.weight == pytest.approx(w[batch, head, query, key].item(), abs=1e-6)
        assert_close(cell.contribution, cell.weight * cell.value)
    shares = sum(here.breakdown(1, 2, key, 1).contribution for key in range(here.keys))
    assert_close(shares, here.out[1, 1, 2].double(), atol=1e-5, rtol=1e-5)


@every_term
def test_a_window_of_one_head_is_that_part_of_the_map(terms):
    here = site(**terms)
    w = rg.attention_weights(here.q, here.k, **here.term_kwargs)
    assert_close(here.weights(), w)
    rows, keys = slice(1, 4), slice(2, 7)
    for head in range(here.heads):
        assert_close(here.window(head, rows, keys), w[:, head, rows, keys])
    pooled = here.window(1, pool=(5, 7), reduce="sum")
    assert_close(pooled[:, 0, 0], w[:, 1].sum((-1, -2)))


@every_term
def test_survey_and_influence_match_the_ops(terms):
    here = site(**terms)
    found = here.survey(statistics=["entropy", "received"])
    want = rg.survey(
        here.q, here.k, here.lse, statistics=["entropy", "received"], **here.term_kwargs
    )
    assert_close(found.received, want.received)
    assert_close(found.entropy, want.entropy)
    want = rg.influence(
        here.q, here.k, here.v, here.out, here.lse, effect="slope", **here.term_kwargs
    )
    assert_close(here.influence(effect="slope").effect_of_key, want.effect_of_key)


def test_only_a_mask_of_the_callers_own_cannot_be_cut_to_a_head():
    cut = {name: select_head(site(**terms).terms, 1) is not None for name, terms in TERMS.items()}
    assert [name for name, could in cut.items() if not could] == ["own"]


def test_counts_and_repr():
    here = site()
    assert (here.batch, here.heads, here.queries, here.keys, here.kind) == (2, 4, 5, 7, "self")
    assert repr(here) == "here: self, 4 heads, 5 queries, 7 keys, batch of 2"


def test_the_last_may_be_counted_from_the_end():
    here = site()
    assert here.breakdown(-1, -1, -1).score == here.breakdown(3, 4, 6).score


@pytest.mark.usefixtures("users_view")
def test_indices_out_of_range_raise(monkeypatch):
    here = site()
    with pytest.raises(ShapeError, match="head: needs less than 4, got 4; try 0 to 3"):
        here.window(head=4)
    with pytest.raises(ShapeError, match="key: needs less than 7, got 9"):
        here.breakdown(0, 0, 9)
    monkeypatch.setattr("regard.inspection.sites.site.MAX_MAP_WEIGHTS", 100)
    with pytest.raises(ShapeError, match="needs at most 100 weights, got 280; try window"):
        here.weights()


@pytest.mark.usefixtures("users_view")
def test_a_site_with_only_its_survey_says_so():
    layer = rg.nn.MultiHeadAttention(4, 2)
    with rg.look(layer, survey=["entropy"]) as sight:
        layer(torch.randn(1, 3, 4))
    [here] = sight
    assert here.survey(statistics=["entropy"]).entropy is here.recorded_survey.entropy
    with pytest.raises(LookError, match="needs its queries and keys for this, got only its survey"):
        here.window()
    with pytest.raises(
        LookError, match="statistics: needs some of those recorded, entropy, got 'peak'"
    ):
        here.survey(statistics=["peak"])
