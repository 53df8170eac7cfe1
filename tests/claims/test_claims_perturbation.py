"""Planted refutations of claims about perturbations: the verdict follows the evidence."""

from functools import partial

from regard.claims import CLAIMS
from regard.claims.families import perturbation, scaled_keys
from regard.nn import MultiHeadAttention
from regard.ops import Local


def test_a_query_that_moves_all_outputs(monkeypatch):
    attend = perturbation.attend
    monkeypatch.setattr(
        perturbation, "attend", lambda q, k, v: (attend(q, k, v)[0].cumsum(-2), None)
    )
    assert CLAIMS["C1"].run().verdict == "false"


def test_tokens_that_see_only_themselves(monkeypatch):
    class Alone(MultiHeadAttention):
        def forward(self, x, *args, **inputs):
            return super().forward(x, mask=Local(0))

    monkeypatch.setattr(perturbation, "MultiHeadAttention", Alone)
    assert CLAIMS["C2"].run().verdict == "true"


def test_weights_without_normalisation(monkeypatch):
    monkeypatch.setattr(perturbation, "attention_weights", lambda q, k: (q @ k.mT).sigmoid())
    assert CLAIMS["C4"].run().verdict == "true"


def test_outputs_that_are_linear_in_the_noise(monkeypatch):
    monkeypatch.setattr(perturbation, "attend", lambda q, k, v: (q @ k.mT @ v, None))
    assert CLAIMS["C5"].run().verdict == "true"
    assert CLAIMS["C7"].run().verdict == "true"


def test_sensitivity_that_rises_forever(monkeypatch):
    monkeypatch.setattr(perturbation, "one_key_ahead", lambda gaps, v: (gaps, gaps.square()))
    assert CLAIMS["C9"].run().verdict == "true"


def test_weights_of_absolute_scores(monkeypatch):
    def positive(q, k):
        return (q @ k.mT).abs().softmax(-1)

    monkeypatch.setattr(scaled_keys, "attention_weights", positive)
    assert CLAIMS["C10"].run().verdict == "true"


def test_a_first_order_that_is_wrong(monkeypatch):
    monkeypatch.setattr(scaled_keys, "attend", partial(scaled_keys.attend, scale=0.25))
    assert CLAIMS["C13"].run().verdict == "false"
