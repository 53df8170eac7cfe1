"""The MLP baseline."""

import pytest
import torch
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.models import MLP, MLPConfig


def test_two_layers_by_hand():
    model = MLP(MLPConfig(inputs=2, classes=1, hidden=2, layers=1))
    (layer,) = model.layers
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 1.0]]))
        layer.bias.copy_(torch.tensor([0.0, 1.0]))
        model.head.weight.copy_(torch.tensor([[10.0, 1.0]]))
        model.head.bias.fill_(0.5)
    # relu(1 - 2) = 0, relu(2 + 1) = 3, 10 · 0 + 3 + 0.5
    assert model(torch.tensor([[1.0, 2.0]])).tolist() == [[3.5]]


def test_without_an_activation_the_layers_are_one_linear_map():
    config = MLPConfig(inputs=3, classes=2, hidden=4, layers=3, activation="identity")
    model = MLP(config).double()
    weight, bias = torch.eye(3).double(), torch.zeros(3).double()
    for layer in (*model.layers, model.head):
        weight, bias = layer.weight @ weight, layer.weight @ bias + layer.bias
    x = torch.randn(5, 3, dtype=torch.float64)
    assert_close(model(x), x @ weight.mT + bias)


def test_another_size_is_an_error(users_view):
    model = MLP(MLPConfig(inputs=784, classes=10))
    with pytest.raises(ShapeError, match="x: needs inputs=784 .* got 1024; try"):
        model(torch.zeros(1, 1, 32, 32))
    with pytest.raises(ConfigError, match="hidden: needs a whole number of 1 or more, got 0"):
        MLPConfig(inputs=1, classes=1, hidden=0)
    with pytest.raises(ConfigError, match="activation: needs one of relu, .* got 'swish'"):
        MLPConfig(inputs=1, classes=1, activation="swish")
