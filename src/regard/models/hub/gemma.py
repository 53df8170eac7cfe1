"""Gemma: Llama with scaled embeddings, a tanh GELU and norms that store gain - 1."""

from typing import Any

from torch import Tensor

from regard.models.hub.family import HubConfig, NamedTensors
from regard.models.hub.llama import Llama
from regard.models.language import LanguageConfig


class Gemma(Llama):
    model_types = ("gemma",)
    architecture = "GemmaForCausalLM"
    unsupported = ("use_bidirectional_attention",)
    fixed = {**Llama.fixed, "scale_embedding": True}

    def read_options(self, config: HubConfig, state: NamedTensors) -> dict[str, Any]:
        options = super().read_options(config, state) | {"bias": False}
        if config.get("hidden_act") == "gelu":  # as published; transformers reads it as tanh too
            options["activation"] = "gelu_tanh"
        return options

    def write_options(self, config: LanguageConfig) -> dict[str, Any]:
        options = super().write_options(config)
        del options["mlp_bias"]
        return options

    def shape(self, name: str, x: Tensor, *, to_hub: bool) -> Tensor:
        if not name.endswith(".gain"):
            return x
        # read in float32: bfloat16 would round 1 + x to steps of 1/128
        return (x.float() - 1).to(x.dtype) if to_hub else x.float() + 1
