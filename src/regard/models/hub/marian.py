"""BART's descendants: MarianMTModel, and the encoder of Whisper."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.hub.family import HubConfig, HubFamily, HubField, NamedTensors
from regard.models.speech_encoder import SpeechEncoder, SpeechEncoderConfig
from regard.models.translator import Translator, TranslatorConfig
from regard.ops import sinusoidal

_ATTENTION = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "out_proj"}
ENCODER_ATTENTIONS = {"self_attention": "self_attn"}
DECODER_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}


def bart_names(side: str, attentions: dict[str, str], prefix: str = "") -> dict[str, str]:
    """Names of the blocks of one side, as BART and its descendants have them."""
    names = {}
    for ours, hub in attentions.items():
        block, layer = f"{side}.blocks.{{i}}", f"{prefix}layers.{{i}}"
        names |= {f"{block}.{ours}.{a}": f"{layer}.{hub}.{b}" for a, b in _ATTENTION.items()}
        residual = ours.replace("attention", "residual")
        names[f"{block}.{residual}.norm"] = f"{layer}.{hub}_layer_norm"
        names[f"{block}.feed_forward.to_hidden"] = f"{layer}.fc1"
        names[f"{block}.feed_forward.to_out"] = f"{layer}.fc2"
        names[f"{block}.feed_forward_residual.norm"] = f"{layer}.final_layer_norm"
    return names


class Marian(HubFamily):
    model_types = ("marian",)
    architecture = "MarianMTModel"
    model, config = Translator, TranslatorConfig
    prefix = "model."
    names = {
        "source_embedding.token_embeddings": "encoder.embed_tokens.weight",
        "target_embedding.token_embeddings": "decoder.embed_tokens.weight",
        "source_embedding.position_embeddings": "encoder.embed_positions.weight",
        "target_embedding.position_embeddings": "decoder.embed_positions.weight",
        **bart_names("encoder", ENCODER_ATTENTIONS, "encoder."),
        **bart_names("decoder", DECODER_ATTENTIONS, "decoder."),
        "readout.weight": "lm_head.weight",
        "readout.bias": "final_logits_bias",
    }
    shared_table = "decoder.embed_tokens.weight"
    fields = {
        "source_vocab": "vocab_size",
        "target_vocab": HubField("decoder_vocab_size", None),
        "shared_embedding": HubField("share_encoder_decoder_embeddings", True),
        "layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "dim": "d_model",
        "heads": "encoder_attention_heads",
        "ffn_dim": "encoder_ffn_dim",
        "activation": "activation_function",
        "max_positions": "max_position_embeddings",
        "scale_embedding": "scale_embedding",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
    }
    fixed = {"output_bias": True, "norm_first": False, "final_norm": False, "positions": "learned"}

    def read_options(self, config: HubConfig, state: NamedTensors) -> dict[str, Any]:
        for name in ("ffn_dim", "attention_heads"):
            if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
                raise ConfigError(
                    f"decoder_{name}: needs the encoder's {config[f'encoder_{name}']}, "
                    f"got {config[f'decoder_{name}']}"
                )
        shared = state.pop("shared.weight", None)
        for side in ("encoder", "decoder"):
            if shared is not None:
                state[f"{side}.embed_tokens.weight"] = shared
        return {"target_vocab": config.get("decoder_vocab_size") or config["vocab_size"]}

    def write_options(self, config: TranslatorConfig) -> dict[str, Any]:
        return {
            "decoder_ffn_dim": config.resolved_ffn_dim,
            "decoder_attention_heads": config.heads,
            "pad_token_id": 0,
            "eos_token_id": 0,
            "decoder_start_token_id": 0,
            "forced_eos_token_id": None,
        }

    def write(self, model: nn.Module) -> tuple[NamedTensors, dict[str, Any]]:
        assert isinstance(model, Translator)
        state, config = super().write(model)
        if model.config.shared_embedding:  # one table under one name
            state["model.shared.weight"] = state.pop("model.encoder.embed_tokens.weight")
            del state["model.decoder.embed_tokens.weight"]
        return state, config

    def extra_tensors(self, config: TranslatorConfig) -> NamedTensors:
        code = sinusoidal(torch.arange(config.max_positions), config.dim)
        table = torch.cat([code[:, 0::2], code[:, 1::2]], -1).float()
        sides = ("source", "target")
        return {f"{side}_embedding.position_embeddings": table for side in sides}

    def shape(self, name: str, x: Tensor, *, to_hub: bool) -> Tensor:
        if name != "readout.bias":
            return x
        return x[None] if to_hub else x[0]


class Whisper(HubFamily):
    model_types = ("whisper",)
    architecture = "WhisperEncoder"
    model, config = SpeechEncoder, SpeechEncoderConfig
    names = {
        "positions": "embed_positions.weight",
        "subsample.convolutions.0": "conv1",
        "subsample.convolutions.1": "conv2",
        "encoder.norm": "layer_norm",
        **bart_names("encoder", ENCODER_ATTENTIONS),
    }
    # the keys have no bias there; any bias of keys adds one constant per query, which softmax drops
    zero_bias, from_tensors = ("to_k",), ()
    fields = {
        "n_mels": "num_mel_bins",
        "max_positions": "max_source_positions",
        "layers": "encoder_layers",
        "dim": "d_model",
        "heads": "encoder_attention_heads",
        "ffn_dim": "encoder_ffn_dim",
        "activation": "activation_function",
        "dropout": HubField("dropout", 0.0),
        "attention_dropout": HubField("attention_dropout", 0.0),
        "activation_dropout": HubField("activation_dropout", 0.0),
    }

    def base_names(self, tensors: Mapping[str, Tensor]) -> NamedTensors:
        first = next((name for name in tensors if name.endswith("encoder.conv1.weight")), "")
        prefix = first.removesuffix("conv1.weight")
        return {
            name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)
        }
