"""Rollout is the product of dense maps; flow is the narrowest cut."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import LookError, ShapeError
from regard.inspection.attribution import propagation
from regard.inspection.attribution.propagation import max_flow

TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 1, 2]])


def seen(model, *inputs):
    with torch.no_grad(), rg.look(model) as sight:
        model(*inputs)
    return sight


@pytest.fixture
def language():
    config = models.language_tiny(vocab=12, layers=3, kv_heads=2, relative_bias="alibi", sinks=True)
    return models.LanguageModel(config).double().eval()


@pytest.fixture
def translator():
    return models.Translator(models.translator_tiny(vocab=12)).double().eval()


def mixing(site, residual=0.5):
    w = site.weights().mean(1)
    return residual * torch.eye(w.shape[-1], dtype=w.dtype) + (1 - residual) * w


@pytest.mark.parametrize("residual", [0.0, 0.5, 0.9])
def test_rollout_is_the_product_of_the_mixing_maps(language, residual):
    sight = seen(language, TOKENS)
    a, b, c = (mixing(site, residual) for site in sight)
    assert_close(rg.inspection.attention_rollout(sight, residual=residual).own, c @ b @ a)


def test_one_token_is_one_row_of_it(language):
    sight = seen(language, TOKENS)
    whole = rg.inspection.attention_rollout(sight).own
    assert_close(rg.inspection.attention_rollout(sight, -1).own, whole[:, -1:])
    assert_close(rg.inspection.attention_rollout(sight, [4, 2]).own, whole[:, [4, 2]])


def test_bands_of_rows_add_up_to_the_whole(language, monkeypatch):
    sight = seen(language, TOKENS)
    whole = rg.inspection.attention_rollout(sight).own
    monkeypatch.setattr(propagation, "TILE_NUMBERS", 50)
    assert_close(rg.inspection.attention_rollout(sight).own, whole)


def test_rollout_keeps_the_sum_where_no_sink_takes_any():
    model = models.LanguageModel(models.language_tiny(vocab=12)).double().eval()
    own = rg.inspection.attention_rollout(seen(model, TOKENS)).own
    assert_close(own.sum(-1), torch.ones(2, 6, dtype=torch.float64))
    assert (own.triu(1) == 0).all()


def test_a_translator_hands_over_to_the_source_at_each_cross_attention(translator):
    """One joint state, target beside source, and one joint map for each attention."""
    source, target = TOKENS[:, :4], TOKENS[:, :3]
    sight = seen(translator, source, target)
    joint = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    for site in sight:
        step = torch.eye(7, dtype=torch.float64).repeat(2, 1, 1)
        w = site.weights().mean(1) / 2
        if site.name.startswith("encoder"):
            step[:, 3:, 3:] = step[:, 3:, 3:] / 2 + w
        elif site.kind == "cross":
            step[:, :3] = torch.cat([step[:, :3, :3] / 2, w], -1)
        else:
            step[:, :3, :3] = step[:, :3, :3] / 2 + w
        joint = step @ joint
    got = rg.inspection.attention_rollout(sight)
    assert_close(got.own, joint[:, :3, :3])
    assert_close(got.source, joint[:, :3, 3:])
    assert_close((got.own.sum(-1) + got.source.sum(-1)), torch.ones(2, 3, dtype=torch.float64))
    assert rg.inspection.attention_rollout(sight, at="encoder.*").source is None


def test_one_row_of_a_long_input_needs_little_memory():
    q, k = torch.randn(2, 1, 2, 6000, 4)
    site = rg.make_site(q, k, mask=rg.Causal())
    own = rg.inspection.attention_rollout([site, site], -1).own
    assert own.shape == (1, 1, 6000)
    assert_close(own.sum(), torch.tensor(1.0), rtol=1e-4, atol=0)


def narrowest(pipes: np.ndarray, start: int, end: int) -> float:
    """Try every cut: the least that separates start from end is the maximum flow."""
    layers, n = len(pipes), pipes.shape[1]
    nodes = [(l, i) for l in range(layers + 1) for i in range(n)]
    free = [node for node in nodes if node not in ((0, start), (layers, end))]
    best = np.inf
    for count in range(len(free) + 1):
        for some in combinations(free, count):
            side = {(0, start), *some}
            cut = sum(
                pipes[l, i, j]
                for l in range(layers)
                for i in range(n)
                for j in range(n)
                if (l, i) in side and (l + 1, j) not in side
            )
            best = min(best, cut)
    return best


@given(st.integers(0, 10_000))
def test_the_flow_is_the_narrowest_cut(seed):
    dice = np.random.default_rng(seed)
    pipes = dice.random((2, 3, 3)) * (dice.random((2, 3, 3)) > 0.3)
    assert max_flow(pipes, 0, 2) == pytest.approx(narrowest(pipes, 0, 2), abs=1e-7)


def test_flow_takes_back_a_path_that_was_wrong():
    pipes = np.array([[[1.0, 1.0], [0, 0]], [[1.0, 1.0], [1.0, 0]], [[1.0, 0], [0.5, 0]]])
    assert max_flow(pipes, 0, 0) == pytest.approx(1.5)


def test_flow_is_never_less_than_rollout(language):
    sight = seen(language, TOKENS)
    most = rg.inspection.attention_flow(sight, -1)
    assert (most >= rg.inspection.attention_rollout(sight, -1).own[:, 0] - 1e-7).all()
    assert (most <= 1 + 1e-7).all()


@pytest.mark.usefixtures("users_view")
def test_invalid_arguments_of_rollout_raise(language, translator):
    sight = seen(translator, TOKENS[:, :4], TOKENS[:, :3])
    with pytest.raises(LookError, match="at: needs a site of encoder.0.self, .*, got 'middle'"):
        rg.inspection.attention_rollout(sight, 0, "middle")
    with pytest.raises(ShapeError, match="token: needs less than 3, got 3; try 0 to 2"):
        rg.inspection.attention_rollout(sight, 3)
    with pytest.raises(ShapeError, match="residual: needs a number from 0 to 1, got 2"):
        rg.inspection.attention_rollout(sight, 0, residual=2.0)
    with pytest.raises(ShapeError, match="sites: need one sequence from top to bottom, got"):
        rg.inspection.attention_flow(sight, 0)
    with pytest.raises(ShapeError, match="sites: need one sequence from top to bottom, got"):
        rg.inspection.attention_rollout(
            [*seen(language, TOKENS), *seen(language, TOKENS[:, 1:])], 0
        )
    long = rg.make_site(*torch.randn(2, 200, 2))
    with pytest.raises(
        ShapeError, match="sites: need at most 128 tokens, got 200; try attention_rollout"
    ):
        rg.inspection.attention_flow([long], 0)
