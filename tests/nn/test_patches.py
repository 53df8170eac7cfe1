"""The patch embedding is a convolution and is a linear layer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.nn import ClassToken, PatchEmbedding
from regard.ops import patchify

few = st.integers(1, 3)


def test_one_weight_a_pixel_by_hand():
    embedding = PatchEmbedding(channels=1, dim=1, patch_size=2).double()
    linear = nn.Linear(4, 1).double()
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 10.0, 100.0, 1000.0]]))
        linear.bias.fill_(0.5)
    embedding = PatchEmbedding.from_linear(linear, channels=1)
    image = torch.tensor([[[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]], dtype=torch.float64)
    assert embedding(image).flatten().tolist() == [4321.5, 8765.5]


@given(channels=few, height=few, width=few, patch=few, dim=few)
def test_convolution_equals_patchify_and_linear(channels, height, width, patch, dim):
    embedding = PatchEmbedding(channels, dim, patch).double()
    x = torch.randn(2, channels, height * patch, width * patch, dtype=torch.float64)
    by_hand = embedding.to_linear()(patchify(x, patch))
    assert_close(embedding(x), by_hand)
    assert_close(PatchEmbedding.from_linear(embedding.to_linear(), channels)(x), embedding(x))


def test_moving_the_picture_by_a_patch_moves_the_tokens_and_by_a_pixel_does_not():
    embedding = PatchEmbedding(1, 4, patch_size=4)
    x = torch.randn(1, 1, 4, 32)
    tokens = embedding(x)
    assert_close(embedding(x.roll(4, -1)), tokens.roll(1, 1))
    assert (embedding(x.roll(1, -1)) - tokens.roll(1, 1)).abs().max() > 0.1


def test_the_class_token_comes_first_and_learns():
    layer, x = ClassToken(3), torch.randn(2, 4, 3)
    y = layer(x)
    assert torch.equal(y[:, 1:], x)
    assert torch.equal(y[:, 0], layer.token.expand(2, 3))
    y.sum().backward()
    assert layer.token.grad is not None
    assert layer.token.grad.tolist() == [2.0] * 3


def test_errors_name_the_numbers(users_view):
    embedding = PatchEmbedding(3, 8, 4)
    with pytest.raises(
        ShapeError, match="patch_size=4, got 28 by 30; try resizing or padding to 28 by"
    ):
        embedding(torch.zeros(1, 3, 28, 30))
    with pytest.raises(ShapeError, match=r"images: needs \(batch, 3, .* got \(1, 1, 4, 4\)"):
        embedding(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ShapeError, match="linear: needs .* got 12 for channels=1"):
        PatchEmbedding.from_linear(nn.Linear(12, 4), channels=1)
