"""The terms as flex_attention takes them, through its uncompiled backend, which runs anywhere."""

import pytest
import torch
from term_cases import AHEAD, CASES, NO_FLEX, draw
from torch.testing import assert_close

from regard.ops.attend import flex, reference
from regard.ops.intercept import AttentionCall
from regard.ops.terms import make_terms


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.usefixtures("users_view")  # the shape checker cannot be traced
@pytest.mark.parametrize("name", CASES)
def test_flex_scores_are_those_of_the_terms(name, monkeypatch):
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    monkeypatch.setattr(flex, "_flex", lambda: (flex_attention, AuxRequest(lse=True)))
    q, k, v = draw()
    terms = make_terms(q, k, **{"offset": AHEAD} | CASES[name][1])
    has_tiles = flex.needs_tiles(terms.mask) or flex.needs_tiles(terms.bias)
    assert (has_tiles or terms.score is not None) == (name in NO_FLEX)
    if name in NO_FLEX:
        return
    call = AttentionCall(q, k, v, terms)
    want, want_lse = reference.attend(call)
    out, lse = flex.attend(call)
    seen = want_lse != -torch.inf
    assert_close(out[seen], want[seen])
    assert_close(lse[seen], want_lse[seen])
