"""Weights of Hugging Face models, taken over into ours by the names in their state.

Only names and numbers are read: transformers itself is not needed. Nothing is dropped in silence:
a tensor that a family's function did not take is an error, and so is an option we have not.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.hub.encoder_decoder import convert_marian, convert_t5
from regard.models.hub.single_stack import convert_bert, convert_gpt2, convert_llama
from regard.models.hub.state_dict import HubConfig, NamedTensors, StateDictReader
from regard.models.hub.vision_audio import convert_vit, convert_whisper

# a family's function takes what it knows from the state and gives a model and its weights, by name
Converter = Callable[[StateDictReader, HubConfig], tuple[nn.Module, NamedTensors]]
CONVERTERS: dict[str, Converter] = {
    "bert": convert_bert,
    "gpt2": convert_gpt2,
    "llama": convert_llama,
    "marian": convert_marian,
    "mistral": convert_llama,
    "t5": convert_t5,
    "vit": convert_vit,
    "whisper": convert_whisper,
}


def from_transformers(state: Mapping[str, Tensor], config: HubConfig) -> nn.Module:
    """Our model with the weights of one of theirs, from its state_dict and its config as a dict.

    from_transformers(theirs.state_dict(), theirs.config.to_dict())(tokens) = theirs(tokens).logits

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    >>> theirs = LlamaForCausalLM(LlamaConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> ours = from_transformers(theirs.state_dict(), theirs.config.to_dict())
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.allclose(ours(tokens), theirs(tokens).logits, atol=1e-5)
    True
    """
    kind = config.get("model_type")
    if kind not in CONVERTERS:
        close = get_close_matches(str(kind), CONVERTERS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"model_type: needs one of {', '.join(sorted(CONVERTERS))}, got {kind!r}{hint}"
        )
    theirs = StateDictReader(state)
    with torch.random.fork_rng(devices=[]):  # the start is overwritten; luck is not spent
        model, named = CONVERTERS[kind](theirs, config)
    theirs.check_empty()
    _load(model, named)
    return model.eval()


def _load(model: nn.Module, named: NamedTensors) -> None:
    try:
        model.load_state_dict(named)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"state: needs tensors that fit the config, got {why}") from error
