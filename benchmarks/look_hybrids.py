"""`look` on hybrids of linear mixers and attention, against their forward pass on a CPU.

python benchmarks/look_hybrids.py             # two minutes on one core
python benchmarks/look_hybrids.py lfm2        # some of them

Random models of 4 layers, 256 wide, three of the layers linear, in float32; CPU time with one
thread, the least of interleaved repeats. The torch path of KDA writes out every pair of tokens and
channels of a chunk, and that of Mamba-1 goes token by token: they run on 1024 tokens, others on
4096. What `look` adds is the check of each layer against what was recorded.

qwen3_next 1.1 to 1.4, granitemoehybrid 1.1 to 1.2, lfm2 1.1, kimi_linear 1.2, jamba 1.5 (AMD EPYC,
torch 2.13, runs beside other work).
"""

import sys
import time

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import regard as rg

SIZES = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
LINEAR = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
KINDS = {
    "qwen3_next": LINEAR | {
        "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_experts": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba"] * 3 + ["attention"], "mamba_n_heads": 8, "mamba_d_head": 64,
        "mamba_d_state": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 256,
    },
    "lfm2": {"layer_types": ["conv"] * 3 + ["full_attention"]},
    "kimi_linear": LINEAR | {
        "linear_num_heads": 4, "linear_head_dim": 64, "head_dim": 16, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "kv_lora_rank": 64, "q_lora_rank": None,
        "num_key_value_heads": 4, "mlp_layer_types": ["dense"] * 4,
    },
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 3, "num_experts": 2,
              "num_experts_per_tok": 1},
}  # fmt: skip
SHORT = {"kimi_linear", "jamba"}


def timed(work):
    start = time.process_time()
    work()
    return time.process_time() - start


@torch.no_grad()
def main(kinds):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for kind in kinds:
        torch.manual_seed(0)
        config = CONFIG_MAPPING[kind](**SIZES | KINDS[kind])
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        ids = torch.randint(0, 1000, (1, 1024 if kind in SHORT else 4096))

        def look(model=model, ids=ids):
            with rg.look(model) as sight:
                model(ids)
            return sight

        sight = look()
        works = (lambda model=model, ids=ids: model(ids), look)
        forward, looked = (min(x) for x in zip(*[map(timed, works) for _ in range(3)], strict=True))
        survey = timed(sight.mixers[0].survey)
        print(
            f"{kind:<18}{ids.shape[1]:>6} tokens  forward {forward:6.2f} s  "
            f"look {looked / forward:.2f} of it  survey of a linear layer {survey:.2f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or KINDS)
