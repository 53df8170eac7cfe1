"""A Llama whose first token is an attention sink: influence against really removing the key."""

import pytest
import torch

import regard as rg

transformers = pytest.importorskip("transformers")

DIM, HEADS, KV_HEADS, TOKENS = 64, 4, 2, 40


def llama_with_a_sink(dtype: torch.dtype):
    """Random weights, then bent: every query asks for a feature that only token 0 has as a key."""
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=DIM,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        attention_bias=True,
        rope_theta=1e8,  # the slowest pair of features hardly turns
    )
    model = transformers.LlamaForCausalLM(config).eval()
    width = DIM // HEADS
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        first = model.model.embed_tokens.weight[0]
        first.zero_()[0] = 30.0  # keeps its direction through both layers
        model.model.embed_tokens.weight[1:, 0] = 0.0
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.q_proj.bias.view(HEADS, width)[:, -1] = 5.0
            # RMSNorm makes the first feature of token 0 √DIM = 8, and nearly nothing elsewhere
            attention.k_proj.weight.view(KV_HEADS, width, DIM)[:, -1, 0] = 1.3
            attention.v_proj.weight.normal_(std=DIM**-0.5)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_of_a_model_have_the_influence_of_really_removing_them(dtype):
    model = llama_with_a_sink(dtype)
    tokens = torch.randint(1, 50, (1, TOKENS))
    tokens[:, 0] = 0
    with torch.no_grad(), rg.look(model) as sight:
        model(tokens)
    for site in sight.sites:
        q, k, v = (x.double() for x in (site.q, site.k, site.v))
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        ahead = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / (DIM // HEADS) ** 0.5).masked_fill(ahead, -torch.inf)
        w = scores.softmax(-1)
        assert w[:, :, TOKENS // 2 :, 0].min() > 0.999
        assert w[:, :, TOKENS // 2 :, 0].max() < 1 - 1e-9
        effects = []
        for key in range(TOKENS):
            gone = scores.clone()
            gone[..., key] = -torch.inf
            gone = gone.softmax(-1).nan_to_num(nan=0.0)  # nothing left to see
            effects.append((gone @ v - w @ v).norm(dim=-1))
        want = torch.stack(effects, -1)
        found = site.influence()
        for got, truth in (
            (found.effect_on_query, want.sum(-1)),
            (found.strongest, want.amax(-1)),
            (found.effect_of_key, want.sum(-2)),
        ):
            assert ((got.double() - truth).abs() / truth).max() < 1e-3
        dropped = rg.inspection.drop_key_effect(site, 0).change.norm(dim=-1).double()
        assert ((dropped - want[..., 0]).abs() / want[..., 0]).max() < 1e-3
