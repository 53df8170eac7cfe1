"""Planted refutations: the verdict must follow the numbers."""

from dataclasses import replace

import torch

from regard.claims import CLAIMS, Trial
from regard.claims.families import heads, pronouns


def found(claim: str) -> str:
    return CLAIMS[claim].run(Trial()).verdict


def model(count: int, *, drop: float, gradient: float = 1.0) -> pronouns.PronounModel:
    flat = torch.full((2 * count,), 0.1)
    referent = flat.clone()
    referent[-1] = 0.6
    drops = torch.full((2 * count,), drop)
    return pronouns.PronounModel(0, count, 1.0, referent, flat, flat, flat, drops, gradient)


def test_wider_projections_per_head_refute_the_count(monkeypatch):
    layer = heads.MultiHeadAttention
    monkeypatch.setattr(heads, "MultiHeadAttention", lambda d, h, **o: layer(d, h, head_dim=64))
    assert found("E1") == "false"


def test_one_head_that_fits_both_neighbours_refutes_the_floor(monkeypatch):
    monkeypatch.setattr(heads, "fit_position_heads", lambda *inputs: 0.0)
    assert found("E5") == "false"


def test_products_that_always_fit_confirm_the_shapes(monkeypatch):
    monkeypatch.setattr(heads, "_projects", lambda *sizes: True)
    assert found("E7") == "true"


def test_specialisation_follows_the_weights(monkeypatch):
    planted = [model(4, drop=0.1)] * 3
    monkeypatch.setattr(pronouns, "pronoun_study", lambda trial: planted)
    assert found("E8") == "conditional"
    flat = [replace(m, referent=m.rival) for m in planted]
    monkeypatch.setattr(pronouns, "pronoun_study", lambda trial: flat)
    assert found("E8") == "false"
    everywhere = [replace(m, referent=m.rival + 0.5) for m in planted]
    monkeypatch.setattr(pronouns, "pronoun_study", lambda trial: everywhere)
    assert found("E8") == "true"


def test_robustness_and_gradients_decide_more_heads(monkeypatch):
    def plant(drop: float, gradient: float) -> str:
        planted = [model(h, drop=0.5 / h) for h in (1, 2, 4)] + [
            model(8, drop=drop, gradient=gradient)
        ]
        monkeypatch.setattr(pronouns, "pronoun_study", lambda trial: planted)
        return found("E9")

    assert (plant(0.05, 3.0), plant(0.05, 1.0), plant(0.5, 1.0)) == ("true", "conditional", "false")
