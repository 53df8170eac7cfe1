"""Blocks of Gemma 3n and 4: a second feed-forward layer, a scale of the block, parallel streams."""

from typing import Any

import pytest
import torch
import transformers

import regard as rg
from regard.errors import LookError
from regard.inspection import logit_attribution, logit_lens, record_stream, split_score, verify
from regard.inspection.adapters.activation_points import find_activations

IDS = torch.tensor([[3, 9, 4, 30, 7], [8, 8, 2, 11, 5]])
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 32, "num_key_value_heads": 2,
    "head_dim": 4, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 40,
    "num_kv_shared_layers": 1, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
MOE: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 2,
    "top_k_experts": 1,
    "moe_intermediate_size": 8,
}


def make(kind, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}TextConfig")(**SIZES, **options)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for block in model.model.layers:
            if hasattr(block, "layer_scalar"):
                block.layer_scalar.fill_(0.7)
    return model


def gemma_3n():
    return make("Gemma3n", laurel_rank=4, activation_sparsity_pattern=[0.0] * 4)


def gemma_4(**options):
    if not hasattr(transformers, "Gemma4TextConfig"):
        pytest.skip("this transformers has no Gemma 4")
    return make("Gemma4", global_head_dim=4, **options)


@pytest.mark.parametrize("make_model", [gemma_3n, gemma_4], ids=["3n", "4"])
def test_neurons_are_those_of_the_feed_forward_and_the_last_norm_is_as_wide_as_a_block(make_model):
    model = make_model()
    points = find_activations(model)
    assert points["decoder.0.mlp.hidden"].path == "model.layers.0.mlp.down_proj"
    assert points["decoder.0.per_layer.hidden"].path == "model.layers.0.per_layer_projection"
    assert points["decoder.0.per_layer.out"].path == "model.layers.0.post_per_layer_input_norm"
    assert points["decoder.final_norm"].path == "model.norm"
    with torch.no_grad():
        assert torch.allclose(logit_lens(model, IDS).logits[-1], model(IDS).logits, atol=1e-6)
    assert verify(model, {"input_ids": IDS[:1]}).passed


@pytest.mark.parametrize("options", [{}, MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("by", ["part", "head", "neuron", "source"])
def test_a_logit_of_gemma_4_is_the_sum_of_parts_scaled_by_the_later_blocks(by, options):
    model = gemma_4(final_logit_softcapping=None, **options)
    found = logit_attribution(model, IDS, 7, by=by)
    with torch.no_grad():
        assert found.logit == pytest.approx(float(model(IDS).logits[0, -1, 7]), abs=1e-6)
    assert abs(found.error) < 1e-6
    neurons = sum(" neuron " in name and ".mlp" in name for name in found.parts)
    assert neurons == (4 * 24 if by == "neuron" and not options else 0)
    split = split_score(model, IDS, "decoder.2.self", head=0, query=3, key=1)
    assert abs(split.error) < 1e-5


@torch.no_grad()
def test_streams_of_gemma_3n_are_edited_by_position():
    model = gemma_3n()
    edit = rg.edit.zero_activation("decoder.0.residual_in", positions=1)
    changed = []
    hook = model.model.layers[0].register_forward_pre_hook(
        lambda module, args: changed.append(args[0].clone())
    )
    with rg.what_if(model, edit), rg.look(model, "", activations="decoder.0.residual_in") as sight:
        model(IDS)
    hook.remove()
    assert changed[0].shape == (4, 2, 5, 16)
    is_zero = (changed[0] == 0).all(-1)
    assert is_zero[:, :, 1].all()
    assert not is_zero[:, :, [0, 2, 3, 4]].any()
    assert sight.activations["decoder.0.residual_in"].shape == (2, 5, 4, 16)


def test_attribution_of_parallel_streams_is_refused_by_name():
    model = gemma_3n()
    with pytest.raises(LookError, match="needs one residual stream"):
        logit_attribution(model, IDS, 7)
    with pytest.raises(
        LookError, match=r"needs one residual stream .* got states .4, 16. of parallel"
    ):
        dict(record_stream(model, IDS).parts(1))
