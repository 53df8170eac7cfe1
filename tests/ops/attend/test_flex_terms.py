"""The terms as flex_attention takes them, through its uncompiled backend, which runs anywhere."""

import pytest
import torch
from torch.testing import assert_close

from regard import ops
from regard.ops.attend import flex, reference
from regard.ops.intercept import AttentionCall
from regard.ops.terms import make_terms

TERMS = {
    "plain": {},
    "causal": {"mask": ops.Causal()},
    "window": {"mask": ops.Causal() & ops.Local(2)},
    "either": {"mask": ops.Local(1) | ops.Chunked(3)},
    "chunked": {"mask": ops.Chunked(2, left_chunks=1)},
    "padding": {"mask": ops.Padding(torch.tensor([3, 7]), left_padding=torch.tensor([1, 0]))},
    "documents": {"mask": ops.Documents((torch.arange(9) // 2).expand(2, -1))},
    "alibi": {"bias": ops.ALiBi(ops.alibi_slopes(4))},
    "toeplitz": {"bias": ops.Toeplitz(torch.linspace(-1, 1, 20).view(4, 5))},
    "buckets": {"bias": ops.Buckets(torch.linspace(-1, 1, 32).view(8, 4), True, 16)},
    "softcap": {"softcap": 1.5, "mask": ops.Causal()},
    "sinks": {"sinks": torch.linspace(-1, 1, 4)},
    "offset": {"mask": ops.Causal(), "offset": 2, "bias": ops.ALiBi(ops.alibi_slopes(4))},
}


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.usefixtures("users_view")  # the shape checker cannot be traced
@pytest.mark.parametrize("kind", TERMS)
def test_flex_scores_are_those_of_the_terms(kind, monkeypatch):
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    monkeypatch.setattr(flex, "_flex", lambda: (flex_attention, AuxRequest(lse=True)))
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    call = AttentionCall(q, k, v, make_terms(q, k, **TERMS[kind]))
    want, want_lse = reference.attend(call)
    out, lse = flex.attend(call)
    seen = want_lse != -torch.inf
    assert_close(out[seen], want[seen])
    assert_close(lse[seen], want_lse[seen])
