"""Encoders (BERT, ViT and that of Whisper) and encoder-decoders (MarianMTModel and T5)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.classifier import Classifier, ClassifierConfig
from regard.models.hub.family import (
    SIZES,
    HubConfig,
    HubFamily,
    HubField,
    HubOptions,
    NamedTensors,
    read_activation,
    write_activation,
)
from regard.models.speech import SpeechEncoder, SpeechEncoderConfig
from regard.models.translator import Translator, TranslatorConfig
from regard.models.vision import VisionConfig, VisionTransformer
from regard.ops import sinusoidal


class Bert(HubFamily):
    """BertModel (pooled vector, no head) and BertForSequenceClassification."""

    model_types = ("bert",)
    architecture = "BertForSequenceClassification"
    model, config = Classifier, ClassifierConfig
    prefix, copies = "bert.", ("position_ids",)
    unsupported = ("is_decoder", "add_cross_attention")
    names = {
        "embedding.token_embeddings": "embeddings.word_embeddings.weight",
        "embedding.position_embeddings": "embeddings.position_embeddings.weight",
        "embedding.segment_embeddings": "embeddings.token_type_embeddings.weight",
        "embedding.norm": "embeddings.LayerNorm",
        "encoder.blocks.{i}.self_attention.to_q": "encoder.layer.{i}.attention.self.query",
        "encoder.blocks.{i}.self_attention.to_k": "encoder.layer.{i}.attention.self.key",
        "encoder.blocks.{i}.self_attention.to_v": "encoder.layer.{i}.attention.self.value",
        "encoder.blocks.{i}.self_attention.to_out": "encoder.layer.{i}.attention.output.dense",
        "encoder.blocks.{i}.self_residual.norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "encoder.blocks.{i}.feed_forward.to_hidden": "encoder.layer.{i}.intermediate.dense",
        "encoder.blocks.{i}.feed_forward.to_out": "encoder.layer.{i}.output.dense",
        "encoder.blocks.{i}.feed_forward_residual.norm": "encoder.layer.{i}.output.LayerNorm",
        "pooler": "pooler.dense",
        "head": "classifier",
    }
    fields = {
        "vocab": "vocab_size",
        **SIZES,
        "eps": "layer_norm_eps",
        "max_positions": "max_position_embeddings",
        "segments": "type_vocab_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }
    fixed = {
        "norm_first": False,
        "final_norm": False,
        "positions": "learned",
        "scale_embedding": False,
        "embedding_norm": True,
    }
    from_tensors = ("classes", "pooler")

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        head = state.get("classifier.weight")
        return {
            "classes": 0 if head is None else len(head),
            "pooler": "pooler.dense.weight" in state,
        }

    def write_options(self, config: ClassifierConfig) -> HubOptions:
        if not config.segments:  # transformers always adds one
            raise ConfigError("segments: needs 1 or more for a bert checkpoint, got 0")
        if not config.classes:
            return {"architectures": ["BertModel"]}
        return {"id2label": {str(n): f"LABEL_{n}" for n in range(config.classes)}}


class ViT(HubFamily):
    """ViTForImageClassification of square images and patches."""

    model_types = ("vit",)
    architecture = "ViTForImageClassification"
    model, config = VisionTransformer, VisionConfig
    prefix = "vit."
    names = {
        "cls.token": "embeddings.cls_token",
        "positions": "embeddings.position_embeddings",
        "patches.project": "embeddings.patch_embeddings.projection",
        "encoder.norm": "layernorm",
        "encoder.blocks.{i}.self_attention.to_q": "encoder.layer.{i}.attention.attention.query",
        "encoder.blocks.{i}.self_attention.to_k": "encoder.layer.{i}.attention.attention.key",
        "encoder.blocks.{i}.self_attention.to_v": "encoder.layer.{i}.attention.attention.value",
        "encoder.blocks.{i}.self_attention.to_out": "encoder.layer.{i}.attention.output.dense",
        "encoder.blocks.{i}.self_residual.norm": "encoder.layer.{i}.layernorm_before",
        "encoder.blocks.{i}.feed_forward.to_hidden": "encoder.layer.{i}.intermediate.dense",
        "encoder.blocks.{i}.feed_forward.to_out": "encoder.layer.{i}.output.dense",
        "encoder.blocks.{i}.feed_forward_residual.norm": "encoder.layer.{i}.layernorm_after",
        "head": "classifier",
    }
    # live models of release 5; files keep the names of `names`
    renamed = {
        "layers.": "encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    fields = {
        "channels": "num_channels",
        **SIZES,
        "eps": "layer_norm_eps",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }
    from_tensors = ("classes",)

    def base_names(self, tensors) -> NamedTensors:
        state = super().base_names(tensors)
        if "classifier.weight" not in state:
            raise ConfigError(
                "state: needs a linear layer over the classes, got no 'classifier.weight'; "
                "try ViTForImageClassification"
            )
        return state

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
        head = state.get("classifier.weight")
        return {
            "classes": 1 if head is None else len(head),
            "image_size": _side(config, "image_size"),
            "patch_size": _side(config, "patch_size"),
            "qkv_bias": None if config.get("qkv_bias", True) else False,
        }

    def write_options(self, config: VisionConfig) -> HubOptions:
        return {
            "image_size": config.image_size,
            "patch_size": config.patch_size,
            "qkv_bias": config.resolved_qkv_bias,
            "id2label": {str(n): f"LABEL_{n}" for n in range(config.classes)},
        }

    def shape(self, name: str, x: Tensor, *, to_hub: bool) -> Tensor:
        if name == "cls.token":
            return x[None, None] if to_hub else x.flatten()
        if name == "positions":
            return x[None] if to_hub else x.squeeze(0)
        return x


def _side(config: HubConfig, name: str) -> int:
    sides = config[name]
    sides = {sides} if isinstance(sides, int) else set(sides)
    if len(sides) != 1:
        raise ConfigError(f"{name}: needs a square, got {config[name]}")
    return sides.pop()


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
    """MarianMTModel, whose sinusoids are all sines, then all cosines: stored as a table."""

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

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
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

    def write_options(self, config: TranslatorConfig) -> HubOptions:
        return {
            "decoder_ffn_dim": config.resolved_ffn_dim,
            "decoder_attention_heads": config.heads,
            "pad_token_id": 0,
            "eos_token_id": 0,
            "decoder_start_token_id": 0,
            "forced_eos_token_id": None,
        }

    def write(self, model: nn.Module) -> tuple[NamedTensors, HubOptions]:
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
    """WhisperEncoder, or the encoder of a Whisper model; the decoder is left out."""

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


_T5_ATTENTION = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out": "o"}
_FEED_FORWARD = {"to_gate": "wi_0", "to_hidden": "wi_1", "to_out": "wo"}
_T5_SUBLAYERS = {
    "self_attention": ("SelfAttention", _T5_ATTENTION),
    "cross_attention": ("EncDecAttention", _T5_ATTENTION),
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
        hub, maps = _T5_SUBLAYERS[ours]
        names |= {f"{block}.{ours}.{a}": f"{layer}.{hub}.{b}" for a, b in maps.items()}
    return names


class T5(HubFamily):
    """T5ForConditionalGeneration: the first release (relu, tied) and 1.1 (gated, untied)."""

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

    def read_options(self, config: HubConfig, state: NamedTensors) -> HubOptions:
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

    def write_options(self, config: TranslatorConfig) -> HubOptions:
        activation = write_activation(config.activation)
        gated = "gelu" if config.activation == "gelu_tanh" else activation  # see `read_options`
        return {
            "feed_forward_proj": f"gated-{gated}" if config.gated else activation,
            "scale_decoder_outputs": config.output_scale != 1.0,
        }

    def hub_name(self, name: str, config: Any):
        hub, chunk = super().hub_name(name, config)
        return hub if config.gated else hub.replace(".wi_1.", ".wi."), chunk
