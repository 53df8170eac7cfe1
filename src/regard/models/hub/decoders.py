"""Decoders: Llama, Mistral, Qwen2, Arcee, Gemma and GPT-2."""

from dataclasses import replace

from einops import rearrange
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.hub.family import Chunk, HubConfig, HubFamily, HubField, HubOptions, NamedTensors
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
    fields = {
        "vocab": "vocab_size",
        "layers": "num_hidden_layers",
        "dim": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": HubField("num_key_value_heads", None),
        "head_dim": HubField("head_dim", None),
        "ffn_dim": "intermediate_size",
        "activation": "hidden_act",
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
        return {
            "window": self.read_window(config),
            "bias": config.get("mlp_bias", False),
            "qkv_bias": attention_bias,
            "out_bias": attention_bias,
            "rope_theta": _read_rope_theta(config),
        }

    def write_options(self, config: LanguageConfig) -> HubOptions:
        theta = config.rope_theta or 10000.0  # None: refused when the options are compared
        return {
            "rope_theta": theta,  # of releases up to 4; later ones read rope_parameters
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "mlp_bias": config.bias,
            "attention_bias": config.resolved_qkv_bias,
            "bos_token_id": None,
            "eos_token_id": None,
        }

    def read_window(self, config: HubConfig) -> int | None | tuple[int | None, ...]:
        """The sliding window, one for all layers or one per layer."""
        return None

    def write(self, model: nn.Module) -> tuple[NamedTensors, HubOptions]:
        assert isinstance(model, LanguageModel)
        if model.config.rope_theta is not None and not model.config.rotate_half:
            model = _pair_halves(model)
        return super().write(model)


class Mistral(Llama):
    """Llama with a sliding window."""

    model_types = ("mistral",)
    architecture = "MistralForCausalLM"

    def read_window(self, config: HubConfig) -> int | None | tuple[int | None, ...]:
        return config.get("sliding_window")

    def write_options(self, config: LanguageConfig) -> HubOptions:
        options = super().write_options(config) | {"sliding_window": config.window}
        del options["mlp_bias"], options["attention_bias"]
        return options


class Qwen2(Llama):
    """Llama with biases of q, k and v."""

    model_types = ("qwen2",)
    architecture = "Qwen2ForCausalLM"

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
        layers = config["num_hidden_layers"]
        return tuple(None if n < first else config["sliding_window"] for n in range(layers))

    def write_options(self, config: LanguageConfig) -> HubOptions:
        windows = config.windows
        first = next((n for n, window in enumerate(windows) if window is not None), len(windows))
        options = super().write_options(config) | {
            "use_sliding_window": first < len(windows),
            "sliding_window": windows[-1],
            "max_window_layers": first,
        }
        del options["mlp_bias"], options["attention_bias"]
        return options


class Arcee(Llama):
    """Llama without a gate."""

    model_types = ("arcee",)
    architecture = "ArceeForCausalLM"
    fixed = {**Llama.fixed, "gated": False}


def _pair_halves(model: LanguageModel) -> LanguageModel:
    """The same model with rotary pairs of features half a head apart instead of neighbours.

    Queries and keys are permuted alike, so that their products stay.
    """
    other = LanguageModel(replace(model.config, rotate_half=True))
    state, width = model.state_dict(), model.config.resolved_head_dim
    for name, x in state.items():
        if name.rpartition(".")[0].endswith(("to_q", "to_k")):
            halves = "(head pair half) ... -> (head half pair) ..."
            state[name] = rearrange(x, halves, half=2, pair=width // 2)
    other.load_state_dict(state)
    return other.eval()


def _read_rope_theta(config: HubConfig) -> float:
    """The rotary base, from `rope_parameters` (release 5) or `rope_theta` (before)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ConfigError(f"rope_type: needs default, unscaled rotary positions, got {kind!r}")
    return float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))


class Gemma(Llama):
    """Llama with scaled embeddings, a tanh GELU and norms that store gain - 1."""

    model_types = ("gemma",)
    architecture = "GemmaForCausalLM"
    unsupported = ("use_bidirectional_attention",)
    fixed = {**Llama.fixed, "scale_embedding": True}

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        options = super().read_options(config, state) | {"bias": False}
        if config.get("hidden_act") == "gelu":  # as published; transformers reads it as tanh too
            options["activation"] = "gelu_tanh"
        return options

    def write_options(self, config: LanguageConfig) -> HubOptions:
        options = super().write_options(config)
        del options["mlp_bias"]
        return options

    def shape(self, name: str, x: Tensor, *, to_hub: bool) -> Tensor:
        if not name.endswith(".gain"):
            return x
        # read in float32: bfloat16 would round 1 + x to steps of 1/128
        return (x.float() - 1).to(x.dtype) if to_hub else x.float() + 1


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

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        return {"scale": None if config.get("scale_attn_weights", True) else 1.0}

    def write_options(self, config: LanguageConfig) -> HubOptions:
        return {
            "scale_attn_weights": config.scale is None,
            "embd_pdrop": config.dropout,
            "bos_token_id": None,  # of the published vocabulary by default
            "eos_token_id": None,
        }
