"""Planted refutations of claims about the scale of scores: the verdict follows the evidence."""

import torch

from regard.claims import CLAIMS
from regard.claims.families import scaling


def test_means_that_are_not_the_product(monkeypatch):
    draw = scaling.draw_scores
    monkeypatch.setattr(scaling, "draw_scores", lambda *args: draw(*args) + 1)
    assert CLAIMS["D1"].run().verdict == "false"


def test_the_stated_variance(monkeypatch):
    def stated(trial, mean, sigma):
        variance = 2 * len(mean) * sigma**2 * mean.square().sum() + len(mean) * sigma**4
        return variance.sqrt() * trial.normal(4000)

    monkeypatch.setattr(scaling, "draw_scores", stated)
    assert CLAIMS["D3"].run().verdict == "true"


def test_a_softmax_that_never_saturates(monkeypatch):
    attend, survey = scaling.attend, scaling.survey
    monkeypatch.setattr(scaling, "attend", lambda *args, scale: attend(*args, scale=0.01))
    monkeypatch.setattr(
        scaling, "survey", lambda *args, scale, **rest: survey(*args, scale=0.01, **rest)
    )
    assert CLAIMS["D7"].run().verdict == "false"


def test_gradients_that_all_vanish_or_all_explode(monkeypatch):
    widths = [8, 32, 128, 512]

    def power(exponent):
        x = torch.tensor(widths).double() ** exponent
        return scaling.GradientSizes(widths, x, x, x)

    monkeypatch.setattr(scaling, "gradient_sizes", lambda *_: (power(-1), power(0)))
    assert CLAIMS["D8"].run().verdict == "true"
    monkeypatch.setattr(scaling, "gradient_sizes", lambda *_: (power(1), power(0)))
    assert CLAIMS["D8"].run().verdict == "false"
    assert CLAIMS["D9"].run().verdict == "true"


def test_training_that_scaling_does_not_help(monkeypatch):
    monkeypatch.setattr(scaling, "train_model", lambda *args, **options: None)
    monkeypatch.setattr(scaling, "lookup_loss", lambda *_: 0.5 + 0.1 * torch.rand(()))
    assert CLAIMS["D10"].run().verdict == "false"


def test_a_softmax_without_subtraction(monkeypatch):
    monkeypatch.setattr(scaling, "softargmax", lambda x: x.exp() / x.exp().sum(-1, keepdim=True))
    assert CLAIMS["D11"].run().verdict != "false"
