"""Planted refutations: the verdict must follow the numbers."""

import torch

from regard.claims import CLAIMS, Trial
from regard.claims.families import depth, layers


def found(claim: str) -> str:
    return CLAIMS[claim].run(Trial()).verdict


def test_a_norm_without_scale_dependence_confirms_consistent_gradients(monkeypatch):
    class Linear(torch.nn.Module):
        def __init__(self, dim, **options):
            super().__init__()

        def forward(self, x):
            return x - x.mean(-1, keepdim=True)

    monkeypatch.setattr(layers, "Norm", Linear)
    assert found("H9") == "true"


def test_post_ln_that_keeps_the_input_confirms_the_identity(monkeypatch):
    block = depth.EncoderBlock
    monkeypatch.setattr(
        depth, "EncoderBlock", lambda *sizes, norm_first: block(*sizes, norm_first=True)
    )
    assert found("H5") == "true"


def test_a_feed_forward_layer_that_mixes_positions_refutes_its_independence(monkeypatch):
    class Mixing(layers.FeedForward):
        def forward(self, x):
            return super().forward(x + x.mean(-2, keepdim=True))

    monkeypatch.setattr(layers, "FeedForward", Mixing)
    assert found("H11") == "false"


def test_plain_stacks_that_learn_refute_that_they_do_not(monkeypatch):
    monkeypatch.setattr(depth, "_deep_losses", lambda *settings: [0.01, 0.02])
    assert found("H4") == "false"


def test_a_norm_that_does_not_help_refutes_higher_rates(monkeypatch):
    def run(trial, norm, rate, seed):
        return (torch.inf if rate > 0.05 else 0.1), 0.5

    monkeypatch.setattr(depth, "_rate_run", run)
    assert found("H10") == "false"
