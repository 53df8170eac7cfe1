"""Logits over a vocabulary: tied or not, scaled or not."""

import pytest
import torch
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.nn import Readout, xavier_linear


def test_a_score_by_hand():
    layer = Readout(2, 2, tied=True, bias=True, scale=0.5)
    with torch.no_grad():
        layer.bias[:] = torch.tensor([1.0, 0.0])
        logits = layer(torch.tensor([2.0, 4.0]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    assert logits.tolist() == [0.5 * 2 + 1, 0.5 * 6]


def test_own_weights_are_used_even_with_a_table():
    layer, x = Readout(4, 3), torch.randn(2, 4)
    assert_close(layer(x, torch.zeros(3, 4)), x @ layer.weight.mT)


def test_a_projection_keeps_the_size_of_what_passes():
    x = torch.randn(500, 300)
    assert 0.9 < xavier_linear(300, 300)(x).std() < 1.1


def test_a_tied_readout_needs_a_table(users_view):
    with pytest.raises(ShapeError, match="tied_weight: needs the token embeddings"):
        Readout(4, 3, tied=True)(torch.zeros(1, 4))
