"""Weights of T5 and Marian: models of an encoder and a decoder."""

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.hub.state_dict import (
    HubConfig,
    NamedTensors,
    StateDictReader,
    convert_activation,
    take_readout,
)
from regard.models.translator import Translator, TranslatorConfig
from regard.ops import sinusoidal


def convert_t5(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """T5ForConditionalGeneration, first release (relu, tied) or 1.1 (gated, output of its own)."""
    state.drop("coder.embed_tokens.weight")  # copies of `shared`
    words = config["feed_forward_proj"].split("-")
    gated, activation = words[0] == "gated", words[-1]
    named = {"source_embedding.token_embeddings": state.take("shared.weight")}
    named["target_embedding.token_embeddings"] = named["source_embedding.token_embeddings"]
    counts = {"encoder": config["num_layers"], "decoder": config["num_decoder_layers"]}
    hidden = {"wi_0": "to_gate", "wi_1": "to_hidden"} if gated else {"wi": "to_hidden"}
    for side, layers in counts.items():
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        named[f"{side}.relative.table"] = state.take(bias)
        named |= state.take_norm(f"{side}.final_layer_norm", f"{side}.norm")
        for i in range(layers):
            ours, parts = f"{side}.blocks.{i}", [("SelfAttention", "self_attention")]
            if side == "decoder":
                parts.append(("EncDecAttention", "cross_attention"))
            for at, (one, other) in enumerate(parts):
                theirs = f"{side}.block.{i}.layer.{at}"
                for x, to in {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out"}.items():
                    named |= state.take_linear(f"{theirs}.{one}.{x}", f"{ours}.{other}.{to}")
                residual = other.replace("attention", "residual")
                named |= state.take_norm(f"{theirs}.layer_norm", f"{ours}.{residual}.norm")
            theirs = f"{side}.block.{i}.layer.{len(parts)}"
            for one, other in {**hidden, "wo": "to_out"}.items():
                named |= state.take_linear(
                    f"{theirs}.DenseReluDense.{one}", f"{ours}.feed_forward.{other}"
                )
            named |= state.take_norm(f"{theirs}.layer_norm", f"{ours}.feed_forward_residual.norm")
    tied = take_readout(state, named, "target_embedding.token_embeddings")
    # a tied output is scaled down; older configs say so by tying alone
    smaller = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    model = Translator(
        TranslatorConfig(
            source_vocab=config["vocab_size"],
            target_vocab=config["vocab_size"],
            tied=tied,
            output_scale=config["d_model"] ** -0.5 if smaller else 1.0,
            layers=config["num_layers"],
            decoder_layers=config["num_decoder_layers"],
            dim=config["d_model"],
            heads=config["num_heads"],
            head_dim=config["d_kv"],
            ffn_dim=config["d_ff"],
            # its "gated-gelu" has always meant the tanh form
            activation="gelu_tanh"
            if gated and activation == "gelu"
            else convert_activation(activation),
            gated=gated,
            norm="rms",
            eps=config["layer_norm_epsilon"],
            bias=False,
            scale=1.0,
            relative_bias="buckets",
            buckets=config["relative_attention_num_buckets"],
            max_distance=config["relative_attention_max_distance"],
            positions="none",
            scale_embedding=False,
            dropout=config["dropout_rate"],
            attention_dropout=config["dropout_rate"],
            activation_dropout=config["dropout_rate"],
        )
    )
    return model, named


def convert_marian(state: StateDictReader, config: HubConfig) -> tuple[nn.Module, NamedTensors]:
    """MarianMTModel. Its sinusoids are all sines, then all cosines, so they come as a table."""
    for name in ("ffn_dim", "attention_heads"):
        if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
            raise ConfigError(
                f"decoder_{name}: needs the encoder's {config[f'encoder_{name}']}, "
                f"got {config[f'decoder_{name}']}"
            )
    state.remaining = state.without_prefix("model.").remaining
    shared = config.get("share_encoder_decoder_embeddings", True)
    named = {}
    for side, ours in (("encoder", "source_embedding"), ("decoder", "target_embedding")):
        name = "shared.weight" if "shared.weight" in state else f"{side}.embed_tokens.weight"
        named[f"{ours}.token_embeddings"] = state.remaining[name]
        places = state.remaining.pop(f"{side}.embed_positions.weight", None)
        named[f"{ours}.position_embeddings"] = (
            _sines_then_cosines(config) if places is None else places
        )
    state.drop("shared.weight", "embed_tokens.weight")
    cross = {"encoder_attn": "cross_attention"}
    for side, more in (("encoder", {}), ("decoder", cross)):
        for i in range(config[f"{side}_layers"]):
            theirs, ours = f"{side}.layers.{i}", f"{side}.blocks.{i}"
            for one, other in {"self_attn": "self_attention", **more}.items():
                for x, to in {"q": "to_q", "k": "to_k", "v": "to_v", "out": "to_out"}.items():
                    named |= state.take_linear(f"{theirs}.{one}.{x}_proj", f"{ours}.{other}.{to}")
                residual = other.replace("attention", "residual")
                named |= state.take_norm(f"{theirs}.{one}_layer_norm", f"{ours}.{residual}.norm")
            named |= state.take_linear(f"{theirs}.fc1", f"{ours}.feed_forward.to_hidden")
            named |= state.take_linear(f"{theirs}.fc2", f"{ours}.feed_forward.to_out")
            named |= state.take_norm(
                f"{theirs}.final_layer_norm", f"{ours}.feed_forward_residual.norm"
            )
    named["readout.bias"] = state.take("final_logits_bias")[0]
    tied = take_readout(state, named, "target_embedding.token_embeddings")
    model = Translator(
        TranslatorConfig(
            source_vocab=len(named["source_embedding.token_embeddings"]),
            target_vocab=len(named["target_embedding.token_embeddings"]),
            shared_embedding=shared,
            tied=tied,
            output_bias=True,
            layers=config["encoder_layers"],
            decoder_layers=config["decoder_layers"],
            dim=config["d_model"],
            heads=config["encoder_attention_heads"],
            ffn_dim=config["encoder_ffn_dim"],
            activation=convert_activation(config["activation_function"]),
            norm_first=False,
            final_norm=False,
            positions="learned",
            max_positions=config["max_position_embeddings"],
            scale_embedding=config["scale_embedding"],
            dropout=config["dropout"],
            attention_dropout=config["attention_dropout"],
            activation_dropout=config["activation_dropout"],
        )
    )
    return model, named


def _sines_then_cosines(config: HubConfig) -> Tensor:
    code = sinusoidal(torch.arange(config["max_position_embeddings"]), config["d_model"])
    return torch.cat([code[:, 0::2], code[:, 1::2]], -1).float()
