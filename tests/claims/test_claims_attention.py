"""Planted refutations of claims about basic attention: the verdict follows the evidence."""

import torch

from regard.claims import CLAIMS
from regard.claims.families import attention
from regard.nn import MultiHeadAttention, TokenEmbedding


def test_weights_that_do_not_sum_to_one(monkeypatch):
    monkeypatch.setattr(attention, "attention_weights", lambda q, k: (q @ k.mT).sigmoid())
    assert CLAIMS["A1"].run().verdict == "false"


def test_weights_in_another_order_than_scores(monkeypatch):
    monkeypatch.setattr(
        attention, "attention_weights", lambda q, k, **_: (q @ k.mT).abs().softmax(-1)
    )
    assert CLAIMS["A2"].run().verdict == "false"


def test_outputs_outside_the_hull(monkeypatch):
    attend = attention.attend
    monkeypatch.setattr(
        attention, "attend", lambda *args, **terms: (3 * attend(*args, **terms)[0], None)
    )
    assert CLAIMS["A3"].run().verdict == "false"


def test_matrix_form_that_differs_from_the_loop(monkeypatch):
    monkeypatch.setattr(attention, "attend", lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, None))
    assert CLAIMS["A5"].run().verdict == "false"


def test_positions_that_are_always_added(monkeypatch):
    monkeypatch.setattr(
        attention, "TokenEmbedding", lambda vocab, dim, positions: TokenEmbedding(vocab, dim)
    )
    assert CLAIMS["A11"].run().verdict == "false"


def test_a_layer_that_ignores_its_mask(monkeypatch):
    class Unmasked(MultiHeadAttention):
        def forward(self, x, source=None, *, mask=None, **inputs):
            return super().forward(x, source, **inputs)

    monkeypatch.setattr(attention, "MultiHeadAttention", Unmasked)
    assert CLAIMS["A12"].run().verdict == "true"


def test_an_encoder_without_context(monkeypatch):
    def embeddings(model, tokens):
        return [torch.ones(*tokens.shape, 2)] * 4

    monkeypatch.setattr(attention, "all_hidden_states", embeddings)
    assert CLAIMS["A13"].run().verdict == "false"
