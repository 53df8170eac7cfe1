"""Planted refutations of claims about temperature: the verdict follows the evidence."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from regard.claims import CLAIMS
from regard.claims.families import temperature


def test_ties_that_one_key_wins(monkeypatch):
    softargmax = temperature.softargmax

    def first_wins(x, beta=1.0):
        if beta < 100:
            return softargmax(x, beta)
        return F.one_hot(x.argmax(-1), x.shape[-1]).double()

    monkeypatch.setattr(temperature, "softargmax", first_wins)
    assert CLAIMS["B1"].run().verdict == "true"


def test_entropy_that_rises(monkeypatch):
    monkeypatch.setattr(
        temperature,
        "survey",
        lambda q, k, lse, *, scale, statistics: SimpleNamespace(
            entropy=scale * torch.ones(200).double()
        ),
    )
    assert CLAIMS["B3"].run().verdict == "false"


def test_a_temperature_that_is_beta(monkeypatch):
    monkeypatch.setattr(temperature, "at_temperature", temperature.softargmax)
    assert CLAIMS["B5"].run().verdict == "true"


def test_argmax_that_breaks_a_trained_model(monkeypatch):
    monkeypatch.setattr(
        temperature, "train_lookup", lambda *args, choose: temperature.Lookup(choose=choose)
    )
    monkeypatch.setattr(
        temperature,
        "lookup_accuracy",
        lambda model, *_: float(model.choose is not temperature.hard),
    )
    assert CLAIMS["B6"].run().verdict == "false"


def test_dropout_that_changes_nothing(monkeypatch):
    monkeypatch.setattr(temperature, "train_lookup", lambda *args, **options: None)
    monkeypatch.setattr(temperature, "lookup_entropy", lambda *args: 1.0)
    assert CLAIMS["B7"].run().verdict == "false"
