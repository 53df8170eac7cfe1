"""BERT: BertModel (pooled vector, no head) and BertForSequenceClassification."""

from typing import Any

from regard.errors import ConfigError
from regard.models.classifier import Classifier, ClassifierConfig
from regard.models.hub.family import HubConfig, HubFamily, NamedTensors


class Bert(HubFamily):
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

    def read_options(self, config: HubConfig, state: NamedTensors) -> dict[str, Any]:
        head = state.get("classifier.weight")
        return {
            "classes": 0 if head is None else len(head),
            "pooler": "pooler.dense.weight" in state,
        }

    def write_options(self, config: ClassifierConfig) -> dict[str, Any]:
        if not config.segments:  # transformers always adds one
            raise ConfigError("segments: needs 1 or more for a bert checkpoint, got 0")
        if not config.classes:
            return {"architectures": ["BertModel"]}
        return {"id2label": {str(n): f"LABEL_{n}" for n in range(config.classes)}}
