"""The convolutional baseline and its size."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.models import ResNet, ResNetConfig, resnet_of_size
from regard.models.baselines import ResidualBlock


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameters_by_hand():
    # stem 9·2+4, block (2→2) 2·(36+4), head 2·3+3
    assert parameters(ResNet(ResNetConfig(classes=3, width=2, stages=1, blocks=1))) == 22 + 80 + 9


def test_with_the_branch_at_zero_a_block_is_the_identity():
    block = ResidualBlock(4, 4).eval()
    torch.nn.init.zeros_(block.second[1].weight)
    x = torch.rand(2, 4, 5, 5)
    assert torch.equal(block(x), x)  # x is positive, so the last relu leaves it


def test_moved_pictures_have_the_same_features_away_from_the_edge():
    model = ResNet(ResNetConfig(classes=3, width=8, stages=1)).double().eval()
    x = torch.zeros(1, 1, 24, 24, dtype=torch.float64)
    x[..., 10:14, 10:14] = torch.randn(4, 4)
    for shift in (1, 2, 3):
        assert_close(model(x.roll(shift, -1)), model(x))


@settings(max_examples=5)
@given(st.integers(30_000, 3_000_000))
def test_resnet_of_size_matches_a_parameter_count(wanted):
    config = resnet_of_size(wanted, ResNetConfig(classes=10))
    with torch.device("meta"):
        narrow, got, wide = (
            parameters(ResNet(replace(config, width=config.width + step))) for step in (-1, 0, 1)
        )
    assert abs(got / wanted - 1) < 0.05
    assert abs(got - wanted) <= min(abs(narrow - wanted), abs(wide - wanted))


def test_any_image_size_is_accepted():
    model = ResNet(ResNetConfig(classes=3, width=8)).eval()
    assert model(torch.randn(1, 1, 9, 33)).shape == (1, 3)


def test_errors_name_the_numbers(users_view):
    with pytest.raises(ConfigError, match="width: needs at least 4 .* got 3"):
        ResNetConfig(classes=10, width=3)
    with pytest.raises(ConfigError, match="parameters: needs at least .* got 10; try fewer"):
        resnet_of_size(10, ResNetConfig(classes=10))
    with pytest.raises(ShapeError, match=r"images: needs \(batch, 1, .* got \(1, 3, 8, 8\)"):
        ResNet(ResNetConfig(classes=10))(torch.zeros(1, 3, 8, 8))
