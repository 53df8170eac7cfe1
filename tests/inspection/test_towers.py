"""Models of text with towers of images or sounds, and pooling heads beside an encoder."""

import sys
from pathlib import Path

import pytest
import torch

import regard as rg

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tiny_models import IDS, make  # noqa: E402


@pytest.fixture(scope="module")
def gemma4():
    return make("gemma4", "image-text")  # whose tower of sounds has eager attention alone


def test_the_last_stack_is_that_of_the_text(gemma4):
    assert rg.inspection.verify(gemma4, {"input_ids": IDS[:1]}).passed
    lens = rg.inspection.logit_lens(gemma4, {"input_ids": IDS[:1]})
    with torch.no_grad():
        expected = gemma4(input_ids=IDS[:1]).logits
    assert torch.allclose(lens.logits[-1], expected)


def test_the_last_stack_of_a_translator_with_one_table_is_its_decoder():
    model = rg.load("phrases").model
    inputs = torch.tensor([[5, 6, 7]]), torch.tensor([[5, 6]])
    with torch.no_grad():
        expected = model(*inputs)
    lens = rg.inspection.logit_lens(model, inputs)
    assert torch.allclose(lens.logits[-1], expected, atol=1e-5)


def test_a_check_leaves_the_attention_of_each_part(gemma4):
    parts = [m for m in gemma4.modules() if hasattr(m, "set_attn_implementation")]
    before = [m.config._attn_implementation for m in parts]
    assert {"sdpa", "eager"} <= set(before)
    rg.inspection.verify(gemma4, {"input_ids": IDS[:1]})
    assert [m.config._attn_implementation for m in parts] == before


def test_the_cost_of_a_model_with_a_tower_without_fused_attention(gemma4):
    cost = rg.cost(gemma4, source=12, batch=1)
    assert cost.parameters == sum(p.numel() for p in gemma4.parameters())


def test_the_pooling_head_of_siglip_is_recorded():
    model, pixels = make("siglip", "image"), torch.randn(1, 3, 32, 32)
    with torch.no_grad(), rg.look(model) as sight:
        model(pixel_values=pixels)
    assert sight.skipped == {}
    assert sight.names[-1] == "vision_model.head.attention"
    assert "1 0." in str(rg.inspection.logit_lens(model, {"pixel_values": pixels}))  # two classes


def test_patching_of_a_model_of_mixers_alone():
    model = make("mamba2")
    results = {r.name: r for r in rg.inspection.verify(model, {"input_ids": IDS[:1]}).results}
    assert results["patching"].error == 0
    with torch.no_grad(), rg.look(model) as sight:
        model(IDS)
    with pytest.raises(rg.errors.LookError, match="sight: needs an attention, got none"):
        rg.inspection.attention_rollout(sight)


def pictured(kind):
    """A model and a text with the placeholders of one picture of 4 × 4 patches."""
    model, grid = make(kind, "image-text"), torch.tensor([[1, 4, 4]])
    count = 4 if kind == "qwen2_vl" else 16
    ids = torch.cat([torch.full((1, count), 40), IDS[:1]], 1)
    generator = torch.Generator().manual_seed(2)
    if kind == "qwen2_vl":
        pixels = torch.randn(16, 3 * 8 * 8, generator=generator)
        return model, {
            "input_ids": ids,
            "pixel_values": pixels,
            "image_grid_thw": grid,
            "mm_token_type_ids": (ids == 40).int(),
        }
    return model, {"input_ids": ids, "pixel_values": torch.randn(1, 3, 32, 32, generator=generator)}


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_every_layer_is_accounted_for_on_a_picture_with_a_text(kind):
    model, given = pictured(kind)
    with torch.no_grad(), rg.look(model) as sight:
        model(**given)
    assert sight.skipped == {}  # patches in their place in the text are no mixing
    assert len(sight) == 4
    assert all(site.patches for site in sight)


def test_what_else_mixes_beside_a_picture_is_named():
    model, given = pictured("llava")
    norm = model.model.language_model.norm
    norm.forward = lambda x: x.cumsum(1)
    with torch.no_grad(), rg.look(model) as sight:
        model(**given)
    assert list(sight.skipped) == ["model.language_model.norm"]
