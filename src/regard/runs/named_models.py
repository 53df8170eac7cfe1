"""Models by name for cost estimates and diagrams: presets on the meta device, or saved models."""

from difflib import get_close_matches
from pathlib import Path

import torch
from torch import nn

from regard import models
from regard.errors import ConfigError
from regard.runs.load import find_run, pretrained_names

_MODELS = {
    "translator": models.Translator,
    "recurrent": models.RecurrentTranslator,
    "language": models.LanguageModel,
    "classifier": models.Classifier,
    "vision": models.VisionTransformer,
    "recogniser": models.Recogniser,
}


def build_or_load_model(name: str, *, vocab: int = 32000, classes: int = 10) -> nn.Module:
    """A model by the name of a preset or pretrained model, or by its path.

    A preset is built on the meta device: it has all shapes, and its weights take no memory.

    >>> model = build_or_load_model("translator_base")
    >>> model.readout.weight, next(model.parameters()).device
    (None, device(type='meta'))
    """
    if name in preset_names():
        kind = name.partition("_")[0]
        sizes = {"classifier": {"vocab": vocab, "classes": classes}, "vision": {"classes": classes}}
        config = getattr(models, name)(**sizes.get(kind, {"vocab": vocab}))
        with torch.device("meta"):
            return _MODELS[kind](config)
    if Path(name).exists() or name in pretrained_names():
        return models.load(find_run(name)).float()
    known = [*preset_names(), *pretrained_names()]
    near = get_close_matches(name, known, 1, 0.5) or ["translator_base"]
    raise ConfigError(
        f"name: needs a saved model or one of {', '.join(known)}, got {name!r}; try {near[0]}"
    )


def preset_names() -> list[str]:
    """Names of the model presets.

    >>> "translator_base" in preset_names()
    True
    """
    return [name for name in models.__all__ if name.partition("_")[0] in _MODELS]
