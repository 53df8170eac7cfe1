"""Weights of BERT, GPT-2 and Llama: models of one stack."""

from torch import nn

from regard.errors import ConfigError
from regard.models.classifier import Classifier, ClassifierConfig
from regard.models.hub.state_dict import (
    HubConfig,
    NamedTensors,
    StateDictReader,
    check_unsupported,
    convert_activation,
    take_readout,
)
from regard.models.language import LanguageConfig, LanguageModel


def convert_bert(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """BertModel (no head: the pooled vector) or BertForSequenceClassification."""
    check_unsupported(config, "is_decoder", "add_cross_attention")
    state.remaining = state.without_prefix("bert.").remaining
    state.drop("position_ids")
    named = {
        "embedding.token_embeddings": state.take("embeddings.word_embeddings.weight"),
        "embedding.position_embeddings": state.take("embeddings.position_embeddings.weight"),
        "embedding.segment_embeddings": state.take("embeddings.token_type_embeddings.weight"),
        **state.take_norm("embeddings.LayerNorm", "embedding.norm"),
    }
    for i in range(config["num_hidden_layers"]):
        theirs, ours = f"encoder.layer.{i}", f"encoder.blocks.{i}"
        attention = {"self.query": "to_q", "self.key": "to_k", "self.value": "to_v"}
        for one, other in {**attention, "output.dense": "to_out"}.items():
            named |= state.take_linear(
                f"{theirs}.attention.{one}", f"{ours}.self_attention.{other}"
            )
        named |= state.take_norm(
            f"{theirs}.attention.output.LayerNorm", f"{ours}.self_residual.norm"
        )
        named |= state.take_linear(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.to_hidden")
        named |= state.take_linear(f"{theirs}.output.dense", f"{ours}.feed_forward.to_out")
        named |= state.take_norm(f"{theirs}.output.LayerNorm", f"{ours}.feed_forward_residual.norm")
    pooler, head = "pooler.dense.weight" in state, "classifier.weight" in state
    if pooler:
        named |= state.take_linear("pooler.dense", "pooler")
    if head:
        named |= state.take_linear("classifier", "head")
    model = Classifier(
        ClassifierConfig(
            vocab=config["vocab_size"],
            classes=len(named["head.weight"]) if head else 0,
            pooler=pooler,
            layers=config["num_hidden_layers"],
            dim=config["hidden_size"],
            heads=config["num_attention_heads"],
            ffn_dim=config["intermediate_size"],
            activation=convert_activation(config["hidden_act"]),
            norm_first=False,
            final_norm=False,
            eps=config["layer_norm_eps"],
            positions="learned",
            max_positions=config["max_position_embeddings"],
            scale_embedding=False,
            embedding_norm=True,
            segments=config["type_vocab_size"],
            dropout=config["hidden_dropout_prob"],
            attention_dropout=config["attention_probs_dropout_prob"],
        )
    )
    return model, named


def convert_gpt2(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """GPT2LMHeadModel or GPT2Model."""
    check_unsupported(config, "add_cross_attention", "scale_attn_by_inverse_layer_idx")
    state.remaining = state.without_prefix("transformer.").remaining
    state.drop(".attn.bias", ".attn.masked_bias")
    named = {
        "embedding.token_embeddings": state.take("wte.weight"),
        "embedding.position_embeddings": state.take("wpe.weight"),
        **state.take_norm("ln_f", "decoder.norm"),
    }
    for i in range(config["n_layer"]):
        theirs, ours = f"h.{i}", f"decoder.blocks.{i}"
        stacked = state.take_linear(f"{theirs}.attn.c_attn", "qkv", transposed=True)
        for kind in ("weight", "bias"):  # theirs are one map, ours three
            for x, part in zip("qkv", stacked[f"qkv.{kind}"].chunk(3), strict=True):
                named[f"{ours}.self_attention.to_{x}.{kind}"] = part
        for one, other in {
            "attn.c_proj": "self_attention.to_out",
            "mlp.c_fc": "feed_forward.to_hidden",
            "mlp.c_proj": "feed_forward.to_out",
        }.items():
            named |= state.take_linear(f"{theirs}.{one}", f"{ours}.{other}", transposed=True)
        named |= state.take_norm(f"{theirs}.ln_1", f"{ours}.self_residual.norm")
        named |= state.take_norm(f"{theirs}.ln_2", f"{ours}.feed_forward_residual.norm")
    tied = take_readout(state, named)
    model = LanguageModel(
        LanguageConfig(
            vocab=config["vocab_size"],
            tied=tied,
            layers=config["n_layer"],
            dim=config["n_embd"],
            heads=config["n_head"],
            ffn_dim=config.get("n_inner"),
            activation=convert_activation(config["activation_function"]),
            eps=config["layer_norm_epsilon"],
            scale=None if config.get("scale_attn_weights", True) else 1.0,
            positions="learned",
            max_positions=config["n_positions"],
            scale_embedding=False,
            dropout=config["resid_pdrop"],
            attention_dropout=config["attn_pdrop"],
        )
    )
    return model, named


def convert_llama(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """LlamaForCausalLM or LlamaModel, without biases; Mistral's too, which adds a window."""
    check_unsupported(config, "attention_bias", "mlp_bias")
    state.remaining = state.without_prefix("model.").remaining
    state.drop("rotary_emb.inv_freq")
    named = {
        "embedding.token_embeddings": state.take("embed_tokens.weight"),
        **state.take_norm("norm", "decoder.norm"),
    }
    for i in range(config["num_hidden_layers"]):
        theirs, ours = f"layers.{i}", f"decoder.blocks.{i}"
        for one, other in {
            "self_attn.q_proj": "self_attention.to_q",
            "self_attn.k_proj": "self_attention.to_k",
            "self_attn.v_proj": "self_attention.to_v",
            "self_attn.o_proj": "self_attention.to_out",
            "mlp.gate_proj": "feed_forward.to_gate",
            "mlp.up_proj": "feed_forward.to_hidden",
            "mlp.down_proj": "feed_forward.to_out",
        }.items():
            named |= state.take_linear(f"{theirs}.{one}", f"{ours}.{other}")
        named |= state.take_norm(f"{theirs}.input_layernorm", f"{ours}.self_residual.norm")
        after = f"{theirs}.post_attention_layernorm"
        named |= state.take_norm(after, f"{ours}.feed_forward_residual.norm")
    tied = take_readout(state, named)
    model = LanguageModel(
        LanguageConfig(
            vocab=config["vocab_size"],
            tied=tied,
            window=config.get("sliding_window"),
            layers=config["num_hidden_layers"],
            dim=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config.get("num_key_value_heads"),
            head_dim=config.get("head_dim"),
            ffn_dim=config["intermediate_size"],
            activation=convert_activation(config["hidden_act"]),
            gated=True,
            norm="rms",
            eps=config["rms_norm_eps"],
            bias=False,
            rope_theta=_rotary_base(config),
            rotate_half=True,
            positions="none",
            scale_embedding=False,
            attention_dropout=config.get("attention_dropout", 0.0),
        )
    )
    return model, named


def _rotary_base(config: HubConfig) -> float:
    """The base of the angles, as newer configs (rope_parameters) and older ones say it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ConfigError(f"rope_type: needs default, plain rotary positions, got {kind!r}")
    return float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
