"""Planted refutations: the verdict must follow the numbers."""

import pytest
import torch

from regard.claims import CLAIMS, Trial
from regard.claims.families import convolution, masks


def found(claim: str) -> str:
    return CLAIMS[claim].run(Trial()).verdict


def test_identity_weights_make_orthonormal_keys_an_identity_layer(monkeypatch):
    def identity(q, k, **terms):
        return torch.eye(len(q), dtype=q.dtype)

    monkeypatch.setattr(convolution, "attention_weights", identity)
    assert found("G2") == "true"


def test_a_leaking_mask_refutes_that_causal_outputs_ignore_the_future(monkeypatch):
    monkeypatch.setattr(masks, "Causal", lambda: masks.Local(2))
    assert found("G12") == "false"


def test_full_access_refutes_that_local_masks_take_layers(monkeypatch):
    monkeypatch.setattr(masks, "_layers_to_connect", lambda allowed: 1)
    assert found("G16") == "true"


def test_hard_maps_that_are_permutations_confirm_them(monkeypatch):
    def permutations(scores, beta):
        order = torch.rand(scores.shape[:-1]).argsort(-1)
        return torch.nn.functional.one_hot(order, scores.shape[-1]).double()

    monkeypatch.setattr(convolution, "softargmax", permutations)
    assert found("G4") == "true"


@pytest.mark.parametrize("forgets", [True, False])
def test_a_stream_that_forgets_refutes_streaming(monkeypatch, forgets):
    def stream(encoder, x, mask, cache):
        parts = x.split(1, 1) if forgets else [x]
        return torch.cat([encoder(part, mask=mask) for part in parts], 1), [1]

    monkeypatch.setattr(masks, "_stream", stream)
    assert found("G13") == ("false" if forgets else "true")
