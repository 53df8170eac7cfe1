"""T5ForConditionalGeneration: the first release (relu, tied) and 1.1 (gated, untied)."""

from typing import Any

from regard.models.hub.family import (
    HubConfig,
    HubFamily,
    NamedTensors,
    read_activation,
    write_activation,
)
from regard.models.translator import Translator, TranslatorConfig

_ATTENTION = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out": "o"}
_FEED_FORWARD = {"to_gate": "wi_0", "to_hidden": "wi_1", "to_out": "wo"}
_SUBLAYERS = {
    "self_attention": ("SelfAttention", _ATTENTION),
    "cross_attention": ("EncDecAttention", _ATTENTION),
    "feed_forward": ("DenseReluDense", _FEED_FORWARD),
}


def _stack(side: str, *sublayers: str) -> dict[str, str]:
    """Names of one side; T5 numbers the sublayers of a block."""
    names = {
        f"{side}.relative.table": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
        ".weight",
        f"{side}.norm": f"{side}.final_layer_norm",
    }
    for n, ours in enumerate(sublayers):
        block, layer = f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer.{n}"
        residual = ours.replace("attention", "residual").replace("forward", "forward_residual")
        names[f"{block}.{residual}.norm"] = f"{layer}.layer_norm"
        hub, maps = _SUBLAYERS[ours]
        names |= {f"{block}.{ours}.{a}": f"{layer}.{hub}.{b}" for a, b in maps.items()}
    return names


class T5(HubFamily):
    model_types = ("t5",)
    architecture = "T5ForConditionalGeneration"
    model, config = Translator, TranslatorConfig
    copies = ("coder.embed_tokens.weight",)
    names = {
        "source_embedding.token_embeddings": "shared.weight",
        "target_embedding.token_embeddings": "shared.weight",
        **_stack("encoder", "self_attention", "feed_forward"),
        **_stack("decoder", "self_attention", "cross_attention", "feed_forward"),
        "readout": "lm_head",
    }
    shared_table = "shared.weight"
    fields = {
        "source_vocab": "vocab_size",
        "target_vocab": "vocab_size",
        "layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "dim": "d_model",
        "heads": "num_heads",
        "head_dim": "d_kv",
        "ffn_dim": "d_ff",
        "eps": "layer_norm_epsilon",
        "buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "dropout": "dropout_rate",
        "attention_dropout": "dropout_rate",
        "activation_dropout": "dropout_rate",
    }
    fixed = {
        "norm": "rms",
        "bias": False,
        "scale": 1.0,
        "relative_bias": "buckets",
        "positions": "none",
        "scale_embedding": False,
    }

    def read_options(self, config: HubConfig, state: NamedTensors) -> dict[str, Any]:
        words = config["feed_forward_proj"].split("-")
        gated = words[0] == "gated"
        # its "gated-gelu" has always meant the tanh approximation
        tanh = gated and words[-1] == "gelu"
        # a tied output is scaled down; older configs imply that by tying
        scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
        return {
            "gated": gated,
            "activation": "gelu_tanh" if tanh else read_activation(words[-1]),
            "output_scale": config["d_model"] ** -0.5 if scaled else 1.0,
        }

    def write_options(self, config: TranslatorConfig) -> dict[str, Any]:
        activation = write_activation(config.activation)
        gated = "gelu" if config.activation == "gelu_tanh" else activation  # see `read_options`
        return {
            "feed_forward_proj": f"gated-{gated}" if config.gated else activation,
            "scale_decoder_outputs": config.output_scale != 1.0,
        }

    def hub_name(self, name: str, config: Any):
        hub, chunk = super().hub_name(name, config)
        return hub if config.gated else hub.replace(".wi_1.", ".wi."), chunk
