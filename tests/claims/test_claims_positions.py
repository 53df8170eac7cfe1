"""Planted refutations: the verdict must follow the numbers."""

import torch

from regard.claims import CLAIMS, Trial
from regard.claims.families import positions, trained_positions


def found(claim: str) -> str:
    return CLAIMS[claim].run(Trial()).verdict


def test_colliding_codes_refute_that_every_position_has_its_own(monkeypatch):
    sinusoidal = positions.sinusoidal
    monkeypatch.setattr(positions, "sinusoidal", lambda p, d: sinusoidal(p % 1000, d))
    assert found("F5") == "false"


def test_frequencies_per_feature_confirm_that_i_is_the_feature(monkeypatch):
    def by_feature(p, d):
        feature = torch.arange(d)
        angles = p[:, None] * 10000.0 ** (-2 * feature.double() / d)
        return torch.where(feature % 2 == 0, angles.sin(), angles.cos())

    monkeypatch.setattr(positions, "sinusoidal", by_feature)
    assert found("F13") == "true"


def test_outputs_that_stay_in_place_confirm_invariance(monkeypatch):
    class Pooled(positions.Encoder):
        def forward(self, x, **inputs):
            return super().forward(x, **inputs).mean(1, keepdim=True).expand_as(x)

    monkeypatch.setattr(positions, "Encoder", Pooled)
    assert found("F1") == "true"


def test_accuracy_beyond_the_trained_length_decides_extrapolation(monkeypatch):
    good, poor = torch.tensor([[1.0, 0.99, 0.95]] * 3), torch.tensor([[1.0, 0.4, 0.3]] * 3)
    planted = {"sinusoidal": good, "learned": poor, "relative": poor}
    monkeypatch.setattr(trained_positions, "_length_study", lambda *settings: planted)
    assert (found("F9"), found("F10")) == ("true", "false")


def test_order_learned_without_positions_refutes_that_it_cannot_be(monkeypatch):
    planted = {kind: [0.99, 0.98, 1.0] for kind in trained_positions.READERS}
    monkeypatch.setattr(trained_positions, "_order_study", lambda *settings: planted)
    assert found("F3") == "false"
