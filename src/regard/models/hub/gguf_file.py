"""GGUF files of Llama models: weights, config and byte-level BPE, read by the package `gguf`."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import nn

from regard.errors import ConfigError, FileError, library_errors
from regard.files import import_extra
from regard.models.hub.family import HubOptions, NamedTensors
from regard.models.hub.folder import from_transformers

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
}
FIELDS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
PRE_TOKENIZERS = {"gpt-2": False, "smollm": True}  # and whether each digit is a word of its own
CONTROL = 3  # the type of a special token


class GGUFContents(NamedTuple):
    """A model of a GGUF file in float32, its tokenizer.json, and the names of special tokens."""

    model: nn.Module
    tokenizer: str
    special_names: dict[str, str]


def read_gguf(file: str | Path) -> GGUFContents:
    """Read a Llama model of a GGUF file; its weights are dequantised to float32."""
    gguf = import_extra("gguf", "gguf", "to read GGUF files")
    with library_errors(file, "a GGUF file of a Llama model"):
        reader = gguf.GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
        if (kind := values["general.architecture"]) != "llama":
            raise FileError(f"{file}: needs a model of the architecture llama, got {kind}")
        tensors = {
            x.name: torch.from_numpy(gguf.quants.dequantize(x.data, x.tensor_type).copy())
            for x in reader.tensors
        }
        config = _hub_config(values)
        model = from_transformers(_hub_tensors(tensors, config), config)
        return GGUFContents(model, _tokenizer_json(values), _special_names(values))


def _hub_config(values: dict[str, Any]) -> HubOptions:
    config = {name: values[f"llama.{field}"] for name, field in FIELDS.items()}
    # float32 in the file: 1e-05 would be 9.99999974e-06
    config |= {name: float(f"{config[name]:.6g}") for name in ("rms_norm_eps", "rope_theta")}
    config["vocab_size"] = len(values["tokenizer.ggml.tokens"])
    if scaling := values.get("llama.rope.scaling.type", "none") != "none":
        raise ConfigError(f"rope.scaling.type: needs none, got {scaling!r}")
    return {"model_type": "llama", "hidden_act": "silu", **config}


def _hub_tensors(tensors: NamedTensors, config: HubOptions) -> NamedTensors:
    """The tensors under the names and in the order of rows that transformers has."""
    hub = {}
    for name, x in tensors.items():
        number = re.search(r"\d+", name)
        module, _, leaf = re.sub(r"\d+", "{i}", name, count=1).rpartition(".")
        if module not in NAMES:
            raise ConfigError(f"tensors: needs only those of a Llama model, got {name}")
        if module.endswith(("attn_q", "attn_k")):  # rotary pairs are neighbours in GGUF
            key = "num_attention_heads" if module.endswith("q") else "num_key_value_heads"
            order = "(head pair half) dim -> (head half pair) dim"
            x = rearrange(x, order, head=config[key], half=2)
        hub[f"{NAMES[module].replace('{i}', number[0] if number else '')}.{leaf}"] = x
    return hub


def _tokenizer_json(values: dict[str, Any]) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, split = values["tokenizer.ggml.model"], values.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or split not in PRE_TOKENIZERS:
        known = " or ".join(PRE_TOKENIZERS)
        raise ConfigError(f"tokenizer: needs gpt2 with {known} words, got {kind} with {split}")
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(x.split(" ")) for x in values["tokenizer.ggml.merges"]]
    vocab = {token: number for number, token in enumerate(tokens)}
    engine = Tokenizer(models.BPE(vocab, merges))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if PRE_TOKENIZERS[split]:
        words = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    engine.pre_tokenizer, engine.decoder = words, decoders.ByteLevel()
    types = zip(tokens, values["tokenizer.ggml.token_type"], strict=True)
    engine.add_special_tokens([AddedToken(x, special=True) for x, kind in types if kind == CONTROL])
    return engine.to_str()


def _special_names(values: dict[str, Any]) -> dict[str, str]:
    """Which special token has which role, as tokenizer_config.json names them."""
    tokens = values["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {ours: values.get(f"tokenizer.ggml.{name}_token_id") for name, ours in roles.items()}
    named = {f"{role}_token": tokens[i] for role, i in ids.items() if i is not None}
    types = zip(tokens, values["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in types if kind == CONTROL]
    taken = [x for role, x in named.items() if role != "pad_token"]
    free = [x for x in special if x not in taken]
    if named.get("pad_token", taken[0] if taken else "") in taken and free:
        named["pad_token"] = free[-1]  # padding is never read; a new one would be a new row
    return named
