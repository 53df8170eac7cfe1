"""GPT-2: GPT2LMHeadModel and GPT2Model, whose linear maps are stored as (in, out)."""

from typing import Any

from regard.models.hub.family import Chunk, HubConfig, HubFamily, HubField, NamedTensors
from regard.models.language import LanguageConfig, LanguageModel


class GPT2(HubFamily):
    model_types = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    model, config = LanguageModel, LanguageConfig
    prefix, copies = "transformer.", (".attn.bias", ".attn.masked_bias")
    unsupported = ("add_cross_attention", "scale_attn_by_inverse_layer_idx")
    names = {
        "embedding.token_embeddings": "wte.weight",
        "embedding.position_embeddings": "wpe.weight",
        "decoder.norm": "ln_f",
        **{
            f"decoder.blocks.{{i}}.self_attention.to_{x}": Chunk("h.{i}.attn.c_attn", n, 3)
            for n, x in enumerate("qkv")
        },
        "decoder.blocks.{i}.self_attention.to_out": "h.{i}.attn.c_proj",
        "decoder.blocks.{i}.self_residual.norm": "h.{i}.ln_1",
        "decoder.blocks.{i}.feed_forward.to_hidden": "h.{i}.mlp.c_fc",
        "decoder.blocks.{i}.feed_forward.to_out": "h.{i}.mlp.c_proj",
        "decoder.blocks.{i}.feed_forward_residual.norm": "h.{i}.ln_2",
        "readout": "lm_head",
    }
    shared_table = "wte.weight"
    transposed = ("to_q", "to_k", "to_v", "to_out", "to_hidden")
    fields = {
        "vocab": "vocab_size",
        "layers": "n_layer",
        "dim": "n_embd",
        "heads": "n_head",
        "ffn_dim": HubField("n_inner", None),
        "activation": "activation_function",
        "eps": "layer_norm_epsilon",
        "max_positions": "n_positions",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
    }
    fixed = {"positions": "learned", "scale_embedding": False}

    def read_options(self, config: HubConfig, state: NamedTensors) -> dict[str, Any]:
        return {"scale": None if config.get("scale_attn_weights", True) else 1.0}

    def write_options(self, config: LanguageConfig) -> dict[str, Any]:
        return {
            "scale_attn_weights": config.scale is None,
            "embd_pdrop": config.dropout,
            "bos_token_id": None,  # of the published vocabulary by default
            "eos_token_id": None,
        }
