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
