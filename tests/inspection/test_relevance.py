"""Gradient times attention and norm-weighted attention equal those of dense maps."""

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import LookError, ShapeError
from regard.inspection.attribution import propagation
from regard.ops.attend.reference import softmax_with_lse
from regard.ops.intercept import intercepting
from regard.ops.terms import repeat_kv

TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 1, 2]])


@pytest.fixture
def language():
    config = models.language_tiny(vocab=12, layers=3, kv_heads=2, softcap=3.0, sinks=True)
    return models.LanguageModel(config).double().eval()


class Maps:
    """Computes every attention by its dense map and keeps the map, to take its gradient."""

    def __init__(self):
        self.kept = []

    def __call__(self, call, proceed):
        w, lse = softmax_with_lse(call.terms.score_tile(call.q, call.k), call.terms)
        w.retain_grad()
        self.kept.append(w)
        return w @ repeat_kv(call.v, call.q), lse


def dense_steps(model, score):
    maps = Maps()
    with intercepting(maps):
        score(model).backward()
    model.zero_grad()
    return [(w.grad * w.detach()).clamp(min=0).mean(1) for w in maps.kept]


def says(model):
    return model(TOKENS)[:, -1, 3].sum()


def test_relevance_is_the_product_of_gradient_times_map(language):
    whole = torch.eye(6, dtype=torch.float64).expand(2, 6, 6)
    for step in dense_steps(language, says):
        whole = whole + step @ whole
    assert_close(rg.inspection.relevance(language, says).own, whole)
    assert_close(rg.inspection.relevance(language, says, -1).own, whole[:, -1:])


def test_relevance_in_bands_is_the_same(language, monkeypatch):
    want = rg.inspection.relevance(language, says, -1).own
    monkeypatch.setattr(propagation, "TILE_NUMBERS", 50)
    assert_close(rg.inspection.relevance(language, says, -1).own, want)


def test_relevance_of_a_translation_reaches_the_source():
    model = models.Translator(models.translator_tiny(vocab=12)).double().eval()

    def score(model):
        return model(TOKENS[:, :4], TOKENS[:, :3])[:, -1, 5].sum()

    joint = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    sizes = [((3, 7), (3, 7))] * 2 + [((0, 3), (0, 3)), ((0, 3), (3, 7))] * 2
    for step, ((a, b), (c, d)) in zip(dense_steps(model, score), sizes, strict=True):
        move = torch.eye(7, dtype=torch.float64).repeat(2, 1, 1)
        move[:, a:b, c:d] += step
        joint = move @ joint
    got = rg.inspection.relevance(model, score, -1)
    assert_close(got.own, joint[:, 2:3, :3])
    assert_close(got.source, joint[:, 2:3, 3:])
    assert got.source.max() > 0


def test_frozen_models_work_and_grad_is_unchanged(language):
    want = rg.inspection.relevance(language, says, -1).own
    assert all(p.grad is None for p in language.parameters())
    assert_close(rg.inspection.relevance(language.requires_grad_(False), says, -1).own, want)


def test_weighted_value_norms_are_norms_of_weighted_values(language):
    with rg.look(language) as sight:
        language(TOKENS)
    site = sight["decoder.1.self"]
    w_out = rg.inspection.output_projection(language, site)
    given = torch.einsum("bhjv,hvd->bhjd", site.v.repeat_interleave(2, 1), w_out)
    brought = site.weights()[..., None] * given[:, :, None]
    assert_close(rg.inspection.weighted_value_norms(site, w_out), brought.norm(dim=-1))
    assert_close(
        rg.inspection.weighted_value_norms(site, w_out, heads="together"),
        brought.sum(1).norm(dim=-1),
    )
    part = rg.inspection.weighted_value_norms(site, w_out, rows=slice(2, 4), keys=slice(1, 5))
    assert_close(part, brought.norm(dim=-1)[:, :, 2:4, 1:5])
    received = site.survey(statistics=["received"]).received * rg.inspection.value_norms(
        site, w_out
    )
    assert_close(received, brought.norm(dim=-1).sum(-2))


def test_a_heavy_weight_on_an_empty_value_brings_nothing():
    q, k = torch.ones(1, 1), torch.tensor([[9.0], [0.0]])
    site = rg.make_site(q, k, torch.tensor([[0.0], [1.0]]))
    got = rg.inspection.weighted_value_norms(site, torch.ones(1, 1, 1))
    assert got[0, 0, 0, 0] == 0
    assert got[0, 0, 0, 1] > 0


@pytest.mark.usefixtures("users_view")
def test_invalid_arguments_of_relevance_raise(language):
    with pytest.raises(LookError, match="at: needs an attention that ran, got 'x'"):
        rg.inspection.relevance(language, says, 0, "x")
    with pytest.raises(ShapeError, match=r"score: needs to return a scalar, got \(2, 6, 12\)"):
        rg.inspection.relevance(language, lambda m: m(TOKENS), 0)
    site = rg.make_site(*torch.randn(2, 1, 2, 3, 4))
    with pytest.raises(ShapeError, match=r"w_out: needs \(head, value, dim\) = \(2, 4, '…'\), got"):
        rg.inspection.weighted_value_norms(site, torch.zeros(8, 8))
    with pytest.raises(ShapeError, match="heads: needs each or together, got 'all'"):
        rg.inspection.weighted_value_norms(site, torch.zeros(2, 4, 8), heads="all")
    with pytest.raises(
        LookError, match="site: needs an output projection with a known name, got none"
    ):
        rg.inspection.output_projection(torch.nn.Linear(2, 2), site)
