"""Tiny random models whose layers mix tokens linearly, one per kind of layer."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = EXPERTS | LINEAR | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 6, "linear_conv_kernel_dim": 3}
DELTA |= {"shared_expert_intermediate_size": 16}
KIMI = LINEAR | {"linear_num_heads": 4, "linear_head_dim": 8, "qk_rope_head_dim": 4}
KIMI |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": None}
KIMI |= {"num_experts": 4, "num_experts_per_token": 2, "num_expert_group": 1}
KIMI |= {"topk_group": 1, "moe_intermediate_size": 16, "num_key_value_heads": 4}
KIMI |= {"mlp_layer_types": ["dense", "dense"], "head_dim": 4}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2}
MAMBA |= {"mamba_chunk_size": 4}
CONFIGS = {
    "qwen3_next": DELTA,
    "kimi_linear": KIMI,
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 4},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64, "mamba_rms_norm": False},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "minimax": {"block_size": 4, "layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 6},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4},
}
# attentions, linear mixers
COUNTS = {
    "qwen3_next": (1, 1), "kimi_linear": (1, 1), "mamba2": (0, 2), "falcon_h1": (2, 2),
    "lfm2": (1, 1), "minimax": (1, 1), "recurrent_gemma": (1, 4), "jamba": (1, 1),
}  # fmt: skip


def make_hybrid(kind, **changes):
    """A model with random weights, in which maps are not flat."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[kind]
    known = {*config_class().to_dict(), *config_class.attribute_map}
    options = {name: x for name, x in SIZES.items() if name in known} | CONFIGS[kind] | changes
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_class(**options)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(4.0 if p.ndim > 1 and p.shape[0] != 50 and "A_log" not in name else 1.0)
            p.sub_(4.0 if "A_log" in name else 0.0)  # states that last a few tokens
    return model


def token_ids(count=11, batch=2):
    return torch.randint(3, 50, (batch, count), generator=torch.Generator().manual_seed(1))
