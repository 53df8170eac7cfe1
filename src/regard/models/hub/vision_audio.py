"""Weights of ViT and of Whisper's encoder: models that read pictures and sound."""

import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.hub.state_dict import (
    HubConfig,
    NamedTensors,
    StateDictReader,
    convert_activation,
)
from regard.models.speech_encoder import SpeechEncoder, SpeechEncoderConfig
from regard.models.vision import VisionConfig, VisionTransformer

WHISPER_BLOCK = {
    "self_attn.q_proj": "self_attention.to_q",
    "self_attn.k_proj": "self_attention.to_k",
    "self_attn.v_proj": "self_attention.to_v",
    "self_attn.out_proj": "self_attention.to_out",
    "fc1": "feed_forward.to_hidden",
    "fc2": "feed_forward.to_out",
}
VIT_BLOCK = {
    "attention.q_proj": "self_attention.to_q",
    "attention.k_proj": "self_attention.to_k",
    "attention.v_proj": "self_attention.to_v",
    "attention.o_proj": "self_attention.to_out",
    "mlp.fc1": "feed_forward.to_hidden",
    "mlp.fc2": "feed_forward.to_out",
}
# what checkpoints and older releases call the same layers
OLDER_VIT = {
    "encoder.layer.": "layers.",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",  # after attention.output.dense, which it is the end of
}


def convert_vit(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """ViTForImageClassification, square pictures and patches."""
    state.remaining = state.without_prefix("vit.").remaining
    for old, new in OLDER_VIT.items():
        state.remaining = {name.replace(old, new): x for name, x in state.remaining.items()}
    if "classifier.weight" not in state:
        raise ConfigError(
            "state: needs a linear layer over the classes, got no 'classifier.weight'; "
            "try ViTForImageClassification"
        )
    named = {
        "cls.token": state.take("embeddings.cls_token").flatten(),
        "positions": state.take("embeddings.position_embeddings").squeeze(0),
        **state.take_linear("embeddings.patch_embeddings.projection", "patches.project"),
        **state.take_norm("layernorm", "encoder.norm"),
        **state.take_linear("classifier", "head"),
    }
    for i in range(config["num_hidden_layers"]):
        theirs, ours = f"layers.{i}", f"encoder.blocks.{i}"
        for one, other in VIT_BLOCK.items():
            named |= _layer(state, f"{theirs}.{one}", f"{ours}.{other}")
        named |= state.take_norm(f"{theirs}.layernorm_before", f"{ours}.self_residual.norm")
        named |= state.take_norm(f"{theirs}.layernorm_after", f"{ours}.feed_forward_residual.norm")
    model = VisionTransformer(
        VisionConfig(
            classes=len(named["head.weight"]),
            image_size=_side(config, "image_size"),
            patch_size=_side(config, "patch_size"),
            channels=config["num_channels"],
            layers=config["num_hidden_layers"],
            dim=config["hidden_size"],
            heads=config["num_attention_heads"],
            ffn_dim=config["intermediate_size"],
            activation=convert_activation(config["hidden_act"]),
            eps=config["layer_norm_eps"],
            dropout=config["hidden_dropout_prob"],
            attention_dropout=config["attention_probs_dropout_prob"],
        )
    )
    return model, named


def convert_whisper(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """WhisperEncoder, or the encoder of a WhisperModel, whose decoder is not taken."""
    _keep_encoder(state)
    named = {
        "positions": state.take("embed_positions.weight"),
        **state.take_linear("conv1", "subsample.convolutions.0"),
        **state.take_linear("conv2", "subsample.convolutions.1"),
        **state.take_norm("layer_norm", "encoder.norm"),
    }
    for i in range(config["encoder_layers"]):
        theirs, ours = f"layers.{i}", f"encoder.blocks.{i}"
        for one, other in WHISPER_BLOCK.items():
            named |= _layer(state, f"{theirs}.{one}", f"{ours}.{other}")
        named |= state.take_norm(f"{theirs}.self_attn_layer_norm", f"{ours}.self_residual.norm")
        named |= state.take_norm(f"{theirs}.final_layer_norm", f"{ours}.feed_forward_residual.norm")
    model = SpeechEncoder(
        SpeechEncoderConfig(
            n_mels=config["num_mel_bins"],
            max_positions=config["max_source_positions"],
            layers=config["encoder_layers"],
            dim=config["d_model"],
            heads=config["encoder_attention_heads"],
            ffn_dim=config["encoder_ffn_dim"],
            activation=convert_activation(config["activation_function"]),
            dropout=config["dropout"],
            attention_dropout=config["attention_dropout"],
            activation_dropout=config["activation_dropout"],
        )
    )
    return model, named


def _keep_encoder(state: StateDictReader) -> None:
    inside = next((name for name in state.remaining if name.endswith("encoder.conv1.weight")), "")
    prefix = inside.removesuffix("conv1.weight")
    kept = {name: x for name, x in state.remaining.items() if name.startswith(prefix)}
    state.remaining = StateDictReader(kept, prefix).remaining


def _layer(state: StateDictReader, theirs: str, ours: str) -> NamedTensors:
    """A linear map; where theirs has no bias, ours is zero, which is the same."""
    named = state.take_linear(theirs, ours)
    weight = named[f"{ours}.weight"]
    return {f"{ours}.bias": torch.zeros_like(weight[:, 0]), **named}


def _side(config: HubConfig, name: str) -> int:
    sides = config[name]
    sides = {sides} if isinstance(sides, int) else set(sides)
    if len(sides) != 1:
        raise ConfigError(f"{name}: needs a square, got {config[name]}")
    return sides.pop()
