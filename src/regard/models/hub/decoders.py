"""Decoders: Llama and its like (Mistral, Qwen2, Qwen3, Arcee, OLMo 2, Phi-3), GPT-2, GPT-NeoX."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.hub.family import (
    SIZES,
    HubConfig,
    HubFamily,
    HubField,
    HubOptions,
    NamedTensors,
    chunks,
)
from regard.models.hub.rope import read_rope, write_rope
from regard.models.language import LanguageConfig, LanguageModel


class Llama(HubFamily):
    model_types = ("llama",)
    architecture = "LlamaForCausalLM"
    model, config = LanguageModel, LanguageConfig
    prefix, copies = "model.", ("rotary_emb.inv_freq",)
    names = {
        "embedding.token_embeddings": "embed_tokens.weight",
        "decoder.norm": "norm",
        "decoder.blocks.{i}.self_attention.to_q": "layers.{i}.self_attn.q_proj",
        "decoder.blocks.{i}.self_attention.to_k": "layers.{i}.self_attn.k_proj",
        "decoder.blocks.{i}.self_attention.to_v": "layers.{i}.self_attn.v_proj",
        "decoder.blocks.{i}.self_attention.to_out": "layers.{i}.self_attn.o_proj",
        "decoder.blocks.{i}.self_residual.norm": "layers.{i}.input_layernorm",
        "decoder.blocks.{i}.feed_forward.to_gate": "layers.{i}.mlp.gate_proj",
        "decoder.blocks.{i}.feed_forward.to_hidden": "layers.{i}.mlp.up_proj",
        "decoder.blocks.{i}.feed_forward.to_out": "layers.{i}.mlp.down_proj",
        "decoder.blocks.{i}.feed_forward_residual.norm": "layers.{i}.post_attention_layernorm",
        "readout": "lm_head",
    }
    shared_table = "embed_tokens.weight"
    bias_fields: ClassVar[tuple[str, ...]] = ("mlp_bias", "attention_bias")  # that its config has
    fields = {
        "vocab": "vocab_size",
        **SIZES,
        "kv_heads": HubField("num_key_value_heads", None),
        "head_dim": HubField("head_dim", None),
        "eps": "rms_norm_eps",
        "max_positions": HubField("max_position_embeddings", 512),
        "attention_dropout": HubField("attention_dropout", 0.0),
    }
    fixed = {
        "gated": True,
        "norm": "rms",
        "rotate_half": True,
        "positions": "none",
        "scale_embedding": False,
    }

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        attention_bias = config.get("attention_bias", False)
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return {
            "window": self.read_window(config),
            "bias": config.get("mlp_bias", False),
            "qkv_bias": attention_bias,
            "out_bias": attention_bias,
            **self.read_rope(config, width),
        }

    def write_options(self, config: LanguageConfig) -> HubOptions:
        biases = {"mlp_bias": config.bias, "attention_bias": config.resolved_qkv_bias}
        options = {name: biases[name] for name in self.bias_fields}
        return write_rope(config) | options | {"bos_token_id": None, "eos_token_id": None}

    def read_window(self, config: HubConfig) -> int | None | tuple[int | None, ...]:
        """The sliding window, one for all layers or one per layer."""
        return None

    def read_rope(self, config: HubConfig, head_dim: int) -> HubOptions:
        """Rotary positions, from the values of any release."""
        return read_rope(config, head_dim)

    def write(self, model: nn.Module) -> tuple[NamedTensors, HubOptions]:
        assert isinstance(model, LanguageModel)
        if model.config.rope_theta is not None and not model.config.rotate_half:
            model = _pair_halves(model)
        return super().write(model)


class Mistral(Llama):
    """Llama with a sliding window."""

    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    bias_fields = ()

    def read_window(self, config: HubConfig) -> int | None | tuple[int | None, ...]:
        return config.get("sliding_window")

    def write_options(self, config: LanguageConfig) -> HubOptions:
        return super().write_options(config) | {"sliding_window": config.window}


class Qwen2(Llama):
    """Llama with biases of q, k and v."""

    model_types = ("qwen2",)
    architecture = "Qwen2ForCausalLM"
    bias_fields = ()

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        return super().read_options(config, state) | {
            "bias": False,
            "qkv_bias": True,
            "out_bias": False,
        }

    def read_window(self, config: HubConfig) -> int | None | tuple[int | None, ...]:
        if not config.get("use_sliding_window") or config.get("sliding_window") is None:
            return None
        first = config.get("max_window_layers", 0)  # the layers below attend to everything
        return read_layer_windows(config, lambda n: n >= first)

    def write_options(self, config: LanguageConfig) -> HubOptions:
        windows = config.resolved_window
        first = next((n for n, window in enumerate(windows) if window is not None), len(windows))
        return super().write_options(config) | {
            "use_sliding_window": first < len(windows),
            "sliding_window": next(iter(windows[first:]), None),
            "max_window_layers": first,
            "layer_types": layer_types(windows),
        }


class Qwen3(Qwen2):
    """Llama with normed queries and keys."""

    model_types = ("qwen3",)
    architecture = "Qwen3ForCausalLM"
    bias_fields = ("attention_bias",)
    names = {
        **Llama.names,
        "decoder.blocks.{i}.self_attention.q_norm": "layers.{i}.self_attn.q_norm",
        "decoder.blocks.{i}.self_attention.k_norm": "layers.{i}.self_attn.k_norm",
    }
    fixed = {**Llama.fixed, "qk_norm": "head"}

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        bias = config.get("attention_bias", False)
        return super().read_options(config, state) | {"qkv_bias": bias, "out_bias": bias}


class Olmo2(Llama):
    """Norms of each sublayer's output, and of all queries and all keys of a token."""

    model_types = ("olmo2",)
    architecture = "Olmo2ForCausalLM"
    bias_fields = ("attention_bias",)
    names = {
        **Qwen3.names,
        "decoder.blocks.{i}.self_residual.output_norm": "layers.{i}.post_attention_layernorm",
        "decoder.blocks.{i}.feed_forward_residual.output_norm": (
            "layers.{i}.post_feedforward_layernorm"
        ),
    }
    fixed = {**Llama.fixed, "qk_norm": "all", "norm_first": False, "output_norm": True}


class Phi3(Mistral):
    """Llama with q, k and v in one tensor, gate and hidden layer in another."""

    model_types = ("phi3",)
    architecture = "Phi3ForCausalLM"
    names = {
        **Llama.names,
        **chunks(
            "layers.{i}.self_attn.qkv_proj",
            "decoder.blocks.{i}.self_attention",
            *("to_q", "to_k", "to_v"),
        ),
        **chunks(
            "layers.{i}.mlp.gate_up_proj",
            "decoder.blocks.{i}.feed_forward",
            *("to_gate", "to_hidden"),
        ),
    }
    fields = {**Llama.fields, "dropout": HubField("resid_pdrop", 0.0)}

    def write_options(self, config: LanguageConfig) -> HubOptions:
        # of the published vocabulary by default
        return super().write_options(config) | {"embd_pdrop": config.dropout, "pad_token_id": None}


class Arcee(Llama):
    """Llama without a gate."""

    model_types = ("arcee",)
    architecture = "ArceeForCausalLM"
    fixed = {**Llama.fixed, "gated": False}


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
        **SIZES,
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


def _pair_halves(model: LanguageModel) -> LanguageModel:
    """The same model with rotary pairs of features half a head apart instead of neighbours.

    Queries and keys are permuted alike, so that their products stay.
    """
    other = LanguageModel(replace(model.config, rotate_half=True))
    state, width, dim = model.state_dict(), other.config.resolved_head_dim, other.config.rope_dim
    for name, x in state.items():
        if name.rpartition(".")[0].endswith(("to_q", "to_k", "q_norm", "k_norm")):
            turned, rest = x.unflatten(0, (-1, width)).tensor_split([dim or width], 1)
            turned = rearrange(turned, "head (pair half) ... -> head (half pair) ...", half=2)
            state[name] = torch.cat([turned, rest], 1).flatten(0, 1)
    other.load_state_dict(state)
    return other.eval()


FULL, SLIDING = "full_attention", "sliding_attention"


def layer_types(windows: Sequence[int | None]) -> list[str]:
    """The hub's names of layers with and without a window."""
    return [FULL if window is None else SLIDING for window in windows]


def read_layer_windows(
    config: HubConfig, has_window: Callable[[int], bool]
) -> int | None | tuple[int | None, ...]:
    """The window of each layer, from `layer_types` or, where a config has none, by its number."""
    types, count = config.get("layer_types"), config["num_hidden_layers"]
    if types is None:
        types = [SLIDING if has_window(n) else FULL for n in range(count)]
    if len(types) != count or set(types) - {FULL, SLIDING}:
        raise ConfigError(
            f"layer_types: needs {count} of {FULL} and {SLIDING}, got {', '.join(map(str, types))}"
        )
    windows = tuple(None if kind == FULL else config["sliding_window"] for kind in types)
    return windows[0] if len(set(windows)) == 1 else windows
