"""Encoders alone: BERT, with or without a head, and ViTForImageClassification."""

from torch import Tensor

from regard.errors import ConfigError
from regard.models.classifier import Classifier, ClassifierConfig
from regard.models.hub.family import HubConfig, HubFamily, HubOptions, NamedTensors
from regard.models.vision import VisionConfig, VisionTransformer


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
        "layers": "num_hidden_layers",
        "dim": "hidden_size",
        "heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "activation": "hidden_act",
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
        "layers": "num_hidden_layers",
        "dim": "hidden_size",
        "heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "activation": "hidden_act",
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
