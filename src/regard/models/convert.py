"""Weights of Hugging Face models, taken over into ours by the names in their state.

Only names and numbers are read: transformers itself is not needed. Nothing is dropped in silence:
a tensor that a family's function did not take is an error, and so is an option we have not.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.convert_pair import marian, t5
from regard.models.convert_single import bert, gpt2, llama
from regard.models.convert_state import Config, Named, State
from regard.models.convert_vision import vit, whisper

# a family's function takes what it knows from the state and gives a model and its weights, by name
Family = Callable[[State, Config], tuple[nn.Module, Named]]
FAMILIES: dict[str, Family] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "marian": marian,
    "mistral": llama,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
}


def from_transformers(state: Mapping[str, Tensor], config: Config) -> nn.Module:
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
    if kind not in FAMILIES:
        close = get_close_matches(str(kind), FAMILIES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"model_type: needs one of {', '.join(sorted(FAMILIES))}, got {kind!r}{hint}"
        )
    theirs = State(state)
    with torch.random.fork_rng(devices=[]):  # the start is overwritten; luck is not spent
        model, named = FAMILIES[kind](theirs, config)
    theirs.check_empty()
    _load(model, named)
    return model.eval()


def _load(model: nn.Module, named: Named) -> None:
    try:
        model.load_state_dict(named)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"state: needs tensors that fit the config, got {why}") from error
