"""The Vision Transformer: parameter counts, invariances, and parity with transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import ViTConfig, ViTForImageClassification

from regard.errors import ConfigError, ShapeError
from regard.models import (
    VisionConfig,
    VisionTransformer,
    from_transformers,
    vision_base,
    vision_small,
    vision_tiny,
)
from regard.ops import patchify, unpatchify


def tiny(**changes) -> VisionTransformer:
    sizes = {"image_size": 12, "patch_size": 4, "channels": 1, "dim": 16, "heads": 2, "layers": 2}
    config = VisionConfig(**{"classes": 5, **sizes, **changes})
    return VisionTransformer(config).double().eval()


def pictures(side: int = 12, channels: int = 1) -> torch.Tensor:
    return torch.randn(2, channels, side, side, dtype=torch.float64)


def test_fx9_tokens_are_patches_and_one():
    assert vision_base(classes=1000).tokens == 196 + 1
    assert vision_base(classes=1000, image_size=384).tokens == 576 + 1
    assert vision_tiny(classes=10).tokens == 49 + 1


def test_parameters_of_the_presets_are_the_published_ones():
    counts = {}
    for preset in (vision_small, vision_base):
        with torch.device("meta"):
            counts[preset] = sum(
                p.numel() for p in VisionTransformer(preset(classes=1000)).parameters()
            )
    assert counts == {vision_small: 22_050_664, vision_base: 86_567_656}


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_the_largest_logit_is_the_largest_probability(head):
    logits = tiny(head=head)(pictures())
    assert logits.shape == (2, 5)
    assert torch.equal(logits.argmax(-1), logits.softmax(-1).argmax(-1))


def test_the_mlp_head_is_one_hidden_layer_on_the_class_token():
    model, x = tiny(head="mlp"), pictures()
    assert model.pre_logits is not None
    assert_close(model(x), model.head(torch.tanh(model.pre_logits(model.encode(x)[:, 0]))))


def test_the_same_size_leaves_the_table_as_it_is_and_another_size_runs():
    model, x = tiny(), pictures()
    plain = model.encoder(model.cls(model.patches(x)) + model.positions)
    assert torch.equal(model.encode(x), plain)
    assert model(torch.randn(1, 1, 8, 20, dtype=torch.float64)).shape == (1, 5)


@given(seed=st.integers(0, 99))
@settings(max_examples=5)
def test_without_positions_the_order_of_patches_is_invisible(seed):
    model, x = tiny(), pictures()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    shuffled = unpatchify(patchify(x, 4)[:, order], 4, (3, 3))
    with torch.no_grad():
        if not torch.equal(order, torch.arange(9)):
            model.positions.normal_()
            assert (model(shuffled) - model(x)).abs().max() > 1e-3
        model.positions.zero_()
    assert_close(model(shuffled), model(x))


def test_the_class_token_attends_to_every_patch():
    model, x = tiny(), pictures().requires_grad_()
    model.features(x)[:, 0].sum().backward()
    assert x.grad is not None
    assert patchify(x.grad, 4).norm(dim=-1).min() > 1e-6


def test_pre_norm_blocks_at_zero_are_the_identity():
    model, x = tiny(), pictures()
    for block in model.encoder.blocks:
        for layer in (block.self_attention.to_out, block.feed_forward.to_out):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    assert model.encoder.norm is not None
    z = model.cls(model.patches(x)) + model.positions
    assert torch.equal(model.encode(x), model.encoder.norm(z))


def theirs(**changes) -> ViTForImageClassification:
    config = ViTConfig(
        **{
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "image_size": 12,
            "patch_size": 4,
            "num_channels": 3,
            "num_labels": 5,
            "initializer_range": 0.5,
            "layer_norm_eps": 0.1,
            **changes,
        }
    )
    return ViTForImageClassification(config).eval()


def converted(model: ViTForImageClassification) -> VisionTransformer:
    ours = from_transformers(model.state_dict(), model.config.to_dict())
    assert isinstance(ours, VisionTransformer)
    return ours


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_same_logits_as_transformers(qkv_bias):
    model = theirs(qkv_bias=qkv_bias)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    x = pictures(12, 3).float()
    ours = converted(model)
    assert_close(ours(x), model(x).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(8, 20), (24, 24), (12, 12)])
def test_same_logits_as_transformers_at_another_size(size):
    model, x = theirs(), torch.randn(2, 3, *size)
    ours = converted(model)
    logits = model(x, interpolate_pos_encoding=True).logits
    assert_close(ours(x), logits, atol=1e-5, rtol=1e-5)


def test_same_gradients_as_transformers():
    model, x = theirs(), pictures(12, 3).float()
    ours = converted(model)
    ours(x).square().sum().backward()
    model(x).logits.square().sum().backward()
    table = model.vit.embeddings.position_embeddings.grad
    assert ours.positions.grad is not None
    assert table is not None
    assert_close(ours.positions.grad, table[0], atol=1e-4, rtol=1e-4)
    weight = model.vit.embeddings.patch_embeddings.projection.weight.grad
    assert_close(ours.patches.project.weight.grad, weight, atol=1e-4, rtol=1e-4)


def test_older_names_of_the_same_weights_are_known():
    model, x = theirs(), pictures(12, 3).float()
    older = {
        "vit.layers.": "vit.encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    state = model.state_dict()
    for now, then in older.items():
        state = {name.replace(now, then): tensor for name, tensor in state.items()}
    ours = from_transformers(state, model.config.to_dict())
    assert torch.equal(ours(x), converted(model)(x))


def test_errors_name_the_numbers(users_view):
    with pytest.raises(
        ConfigError, match="image_size: needs a multiple of patch_size=4, got 30; try 32"
    ):
        vision_tiny(classes=10, image_size=30)
    with pytest.raises(ConfigError, match="dim: needs a multiple of heads=3, got 64"):
        vision_tiny(classes=10, heads=3)
    with pytest.raises(ConfigError, match="head: needs one of linear, mlp, got 'conv'"):
        vision_tiny(classes=10, head="conv")
    headless = {name: x for name, x in theirs().state_dict().items() if "classifier" not in name}
    with pytest.raises(ConfigError, match="state: needs a linear layer over the classes"):
        from_transformers(headless, theirs().config.to_dict())
    with pytest.raises(ConfigError, match=r"image_size: needs a square, got \[8, 12\]"):
        from_transformers(
            theirs().state_dict(), {**theirs().config.to_dict(), "image_size": [8, 12]}
        )
    with pytest.raises(ShapeError, match="patch_size=4, got 30 by 28; try .* to 32 by 28"):
        VisionTransformer(vision_tiny(classes=10))(torch.zeros(1, 1, 30, 28))
