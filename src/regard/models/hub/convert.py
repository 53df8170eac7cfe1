"""Conversion of state dicts and configs, without transformers: only names and numbers are read.

Nothing is dropped silently: a tensor or an option without a counterpart is an error.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from regard.errors import ConfigError, suggestion
from regard.models.hub.bert import Bert, ViT
from regard.models.hub.family import HubConfig, HubFamily, NamedTensors
from regard.models.hub.gpt2 import GPT2
from regard.models.hub.llama import Arcee, Gemma, Llama, Mistral, Qwen2
from regard.models.hub.marian import Marian, Whisper
from regard.models.hub.t5 import T5

FAMILIES: dict[str, HubFamily] = {
    name: family()
    for family in (Arcee, Bert, Gemma, GPT2, Llama, Marian, Mistral, Qwen2, T5, ViT, Whisper)
    for name in family.model_types
}


def from_transformers(state: Mapping[str, Tensor], config: HubConfig) -> nn.Module:
    """A Regard model with the weights of a transformers model.

    from_transformers(hub.state_dict(), hub.config.to_dict())(tokens) = hub(tokens).logits

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    >>> hub = LlamaForCausalLM(LlamaConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> model = from_transformers(hub.state_dict(), hub.config.to_dict())
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.allclose(model(tokens), hub(tokens).logits, atol=1e-5)
    True
    """
    return _family(config.get("model_type")).read(state, config)


def to_transformers(
    model: nn.Module, model_type: str | None = None
) -> tuple[NamedTensors, dict[str, Any]]:
    """The inverse of `from_transformers`: state dict and config of a model.

    `model_type` names the family; by default it is the first that has all of the model's options.

    >>> config = rg.models.classifier_base(vocab=9, classes=2, layers=1, dim=24)
    >>> state, config = to_transformers(rg.models.Classifier(config))
    >>> config["model_type"], state["classifier.weight"].shape
    ('bert', torch.Size([2, 24]))
    """
    if model_type is not None:
        family = _family(model_type)
        if type(model) is not family.model:
            raise ConfigError(
                f"model: needs {family.model.__name__} for {model_type}, got {type(model).__name__}"
            )
        return family.write(model)
    reasons = []
    for family in FAMILIES.values():
        if type(model) is family.model:
            try:
                return family.write(model)
            except ConfigError as error:
                reasons.append(f"{family.model_types[0]} ({error})")
    if reasons:
        raise ConfigError(f"model: needs the options of one family, got {'; '.join(reasons)}")
    known = ", ".join(sorted({family.model.__name__ for family in FAMILIES.values()}))
    raise ConfigError(f"model: needs one of {known}, got {type(model).__name__}; try models.save")


def _family(model_type: Any) -> HubFamily:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError(
            f"model_type: needs one of {', '.join(sorted(FAMILIES))}, got {model_type!r:.60}"
            f"{suggestion(str(model_type), FAMILIES)}"
        )
    return FAMILIES[model_type]
