"""Gemma 1, 2 and 3: scaled embeddings, a tanh GELU and norms that store gain - 1."""

from torch import Tensor

from regard.errors import ConfigError
from regard.models.hub.decoders import Llama, layer_types, read_layer_windows
from regard.models.hub.family import HubConfig, HubField, HubOptions, NamedTensors
from regard.models.hub.rope import read_rope, rope_parameters
from regard.models.language import LanguageConfig


class Gemma(Llama):
    """Llama with scaled embeddings, a tanh GELU and norms that store gain - 1."""

    model_types = ("gemma",)
    architecture = "GemmaForCausalLM"
    bias_fields = ("attention_bias",)
    unsupported = ("use_bidirectional_attention",)
    fixed = {**Llama.fixed, "scale_embedding": True}

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        options = super().read_options(config, state) | {"bias": False}
        if config.get("hidden_act") == "gelu":  # as published; transformers reads it as tanh too
            options["activation"] = "gelu_tanh"
        return options

    def shape(self, name: str, x: Tensor, *, to_hub: bool) -> Tensor:
        if not name.endswith(".gain"):
            return x
        # read in float32: bfloat16 would round 1 + x to steps of 1/128
        return (x.float() - 1).to(x.dtype) if to_hub else x.float() + 1


class Gemma2(Gemma):
    """Norms before and after each sublayer, softcaps, and a window in every other layer."""

    model_types = ("gemma2",)
    architecture = "Gemma2ForCausalLM"
    windowed = 2  # one layer of so many has no window
    names = {
        **Gemma.names,
        "decoder.blocks.{i}.self_residual.output_norm": "layers.{i}.post_attention_layernorm",
        "decoder.blocks.{i}.feed_forward_residual.norm": "layers.{i}.pre_feedforward_layernorm",
        "decoder.blocks.{i}.feed_forward_residual.output_norm": (
            "layers.{i}.post_feedforward_layernorm"
        ),
    }
    fields = {
        **Gemma.fields,
        "activation": HubField("hidden_activation", "gelu_pytorch_tanh"),
        "softcap": HubField("attn_logit_softcapping", 50.0),
        "output_softcap": HubField("final_logit_softcapping", 30.0),
    }
    fixed = {**Gemma.fixed, "output_norm": True}

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        scale = float(config.get("query_pre_attn_scalar", 256)) ** -0.5
        return super().read_options(config, state) | {"scale": scale}

    def write_options(self, config: LanguageConfig) -> HubOptions:
        window = next((window for window in config.resolved_window if window is not None), 1)
        return super().write_options(config) | {
            "query_pre_attn_scalar": round(config.resolved_scale**-2),
            "sliding_window": window,
            "layer_types": layer_types(config.resolved_window),
            "pad_token_id": None,  # of the published vocabulary by default
        }

    def read_window(self, config: HubConfig) -> int | None | tuple[int | None, ...]:
        every = config.get("sliding_window_pattern") or self.windowed
        return read_layer_windows(config, lambda n: bool((n + 1) % every))


class Gemma3(Gemma2):
    """Gemma3ForCausalLM: normed queries and keys, and another rotary base where a window is."""

    model_types = ("gemma3_text",)
    architecture = "Gemma3ForCausalLM"
    windowed = 6
    names = {
        **Gemma2.names,
        "decoder.blocks.{i}.self_attention.q_norm": "layers.{i}.self_attn.q_norm",
        "decoder.blocks.{i}.self_attention.k_norm": "layers.{i}.self_attn.k_norm",
    }
    fields = {
        **Gemma2.fields,
        "softcap": HubField("attn_logit_softcapping", None),
        "output_softcap": HubField("final_logit_softcapping", None),
    }
    fixed = {**Gemma2.fixed, "qk_norm": "head"}

    def read_rope(self, config: HubConfig, head_dim: int) -> HubOptions:
        nested = config.get("rope_parameters") or {}
        full = {"rope_theta": config.get("rope_theta", 1e6)}
        full |= nested.get("full_attention") or config.get("rope_scaling") or {}
        local = {"rope_theta": config.get("rope_local_base_freq", 1e4)}
        local |= nested.get("sliding_attention") or {}
        options, others = (read_rope(config, head_dim, rope) for rope in (full, local))
        theta = others.pop("rope_theta")
        if theta == options["rope_theta"] and others["rope_scaling"] == options["rope_scaling"]:
            return options
        if others["rope_scaling"] is not None or others["rope_dim"] != options["rope_dim"]:
            raise ConfigError(
                "rope_type: needs default in layers with a window, the same features rotated, "
                f"got {local}"
            )
        return options | {"local_rope_theta": theta}

    def write_options(self, config: LanguageConfig) -> HubOptions:
        options, full = super().write_options(config), rope_parameters(config)
        local, theta = full, config.local_rope_theta
        if theta is not None:
            local = {"rope_type": "default", "rope_theta": theta}
        options["rope_local_base_freq"] = local["rope_theta"]  # of releases up to 4
        return options | {"rope_parameters": {"full_attention": full, "sliding_attention": local}}
