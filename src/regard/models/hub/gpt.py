"""Decoders with layer norms: GPT-2, and GPT-NeoX with its parallel blocks (Pythia)."""

from einops import rearrange
from torch import Tensor

from regard.errors import ConfigError
from regard.models.hub.family import (
    HubConfig,
    HubFamily,
    HubField,
    HubOptions,
    NamedTensors,
    chunks,
)
from regard.models.hub.rope import read_rope, write_rope
from regard.models.language import LanguageConfig, LanguageModel


class GPT2(HubFamily):
    """GPT2LMHeadModel and GPT2Model, whose linear maps are stored as (in, out)."""

    model_types = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    model, config = LanguageModel, LanguageConfig
    prefix, copies = "transformer.", (".attn.bias", ".attn.masked_bias")
    unsupported = ("add_cross_attention", "scale_attn_by_inverse_layer_idx")
    names = {
        "embedding.token_embeddings": "wte.weight",
        "embedding.position_embeddings": "wpe.weight",
        "decoder.norm": "ln_f",
        **chunks("h.{i}.attn.c_attn", "decoder.blocks.{i}.self_attention", "to_q", "to_k", "to_v"),
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

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        return {"scale": None if config.get("scale_attn_weights", True) else 1.0}

    def write_options(self, config: LanguageConfig) -> HubOptions:
        return {
            "scale_attn_weights": config.scale is None,
            "embd_pdrop": config.dropout,
            "bos_token_id": None,  # of the published vocabulary by default
            "eos_token_id": None,
        }


class GPTNeoX(HubFamily):
    """GPTNeoXForCausalLM, whose q, k and v alternate by head in one tensor."""

    model_types = ("gpt_neox",)
    architecture = "GPTNeoXForCausalLM"
    model, config = LanguageModel, LanguageConfig
    prefix = "gpt_neox."
    copies = (".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
    names = {
        "embedding.token_embeddings": "embed_in.weight",
        "decoder.norm": "final_layer_norm",
        **chunks(
            "layers.{i}.attention.query_key_value",
            "decoder.blocks.{i}.self_attention",
            *("to_q", "to_k", "to_v"),
        ),
        "decoder.blocks.{i}.self_attention.to_out": "layers.{i}.attention.dense",
        "decoder.blocks.{i}.self_residual.norm": "layers.{i}.input_layernorm",
        "decoder.blocks.{i}.feed_forward.to_hidden": "layers.{i}.mlp.dense_h_to_4h",
        "decoder.blocks.{i}.feed_forward.to_out": "layers.{i}.mlp.dense_4h_to_h",
        "decoder.blocks.{i}.feed_forward_residual.norm": "layers.{i}.post_attention_layernorm",
        "readout": "embed_out",
    }
    renamed = {"lm_head": "embed_out"}  # live models of release 5
    shared_table, output_table = "embed_in.weight", "embed_out.weight"
    fields = {
        "vocab": "vocab_size",
        "layers": "num_hidden_layers",
        "dim": "hidden_size",
        "heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "activation": "hidden_act",
        "eps": "layer_norm_eps",
        "max_positions": "max_position_embeddings",
        "parallel": HubField("use_parallel_residual", True),
        "dropout": HubField("hidden_dropout", 0.0),
        "attention_dropout": HubField("attention_dropout", 0.0),
    }
    fixed = {"rotate_half": True, "positions": "none", "scale_embedding": False}

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        width = config["hidden_size"] // config["num_attention_heads"]
        rope = {
            "rope_theta": config.get("rotary_emb_base", 10000.0),
            "partial_rotary_factor": config.get("rotary_pct", 0.25),
        }
        rope |= config.get("rope_parameters") or config.get("rope_scaling") or {}
        bias = None if config.get("attention_bias", True) else False
        return {"qkv_bias": bias, "out_bias": bias} | read_rope(config, width, rope)

    def write_options(self, config: LanguageConfig) -> HubOptions:
        if (width := config.dim // config.heads) != config.resolved_head_dim:
            got = config.resolved_head_dim
            raise ConfigError(f"head_dim: needs {width} for a gpt_neox checkpoint, got {got}")
        options = write_rope(config)
        rope = options["rope_parameters"]
        rope.setdefault("partial_rotary_factor", 1.0)
        return options | {
            "rotary_emb_base": rope["rope_theta"],  # of releases up to 4
            "rotary_pct": rope["partial_rotary_factor"],
            "attention_bias": config.resolved_qkv_bias,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def stacked(self, name: str, x: Tensor, config: LanguageConfig, *, to_hub: bool) -> Tensor:
        blocks, alternating = "(three head row) ...", "(head three row) ..."
        a, b = (blocks, alternating) if to_hub else (alternating, blocks)
        return rearrange(x, f"{a} -> {b}", three=3, head=config.heads)
