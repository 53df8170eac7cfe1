"""Export of models to ONNX, verified against torch."""

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.classifier import Classifier
from regard.models.config import StackConfig
from regard.models.language import LanguageModel
from regard.models.onnx import parity, recurrent, transformers
from regard.models.recogniser import Recogniser
from regard.models.recurrent import RecurrentTranslator
from regard.models.registry import get_config
from regard.models.translator import Translator
from regard.models.vision import VisionTransformer

TOLERANCE = 1e-4  # on the difference between onnxruntime and torch
# the graphs of a model, and their comparison with torch
EXPORTERS: dict[type[nn.Module], tuple[Any, Any]] = {
    Translator: (transformers.translator_graphs, parity.compare_translator),
    LanguageModel: (transformers.language_graphs, parity.compare_language),
    RecurrentTranslator: (recurrent.recurrent_graphs, parity.compare_recurrent),
    VisionTransformer: (transformers.vision_graphs, parity.compare_vision),
    Classifier: (transformers.classifier_graphs, parity.compare_classifier),
    Recogniser: (transformers.recogniser_graphs, parity.compare_recogniser),
}


class OnnxFile(NamedTuple):
    """One exported file and its largest difference from torch's output.

    >>> OnnxFile(Path("encoder.onnx"), 2e-6).file.name
    'encoder.onnx'
    """

    file: Path
    difference: float


def export_onnx(model: nn.Module, folder: str | Path) -> list[OnnxFile]:
    """Export a model as ONNX files to a folder and compare their outputs with torch's.

    |onnxruntime - torch| ≤ 0.0001 on a small input, or it raises

    A translator gives `encoder` and `step`, a language model `step`, a recogniser `features` and
    `step`, a classifier `classifier`. Batch size and length are dynamic.

    >>> import tempfile
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> [(file.name, difference < 1e-4) for file, difference in
    ...     export_onnx(model, tempfile.mkdtemp())]
    [('step.onnx', True)]
    """
    if type(model) not in EXPORTERS:
        known = ", ".join(kind.__name__ for kind in EXPORTERS)
        raise ConfigError(f"model: needs one of {known} to export, got {type(model).__name__}")
    config = get_config(model)
    if isinstance(config, StackConfig) and config.relative_bias != "none":
        raise ConfigError(
            f"relative_bias: needs none to export, got {config.relative_bias!r}; "
            "try rotary or other positions"
        )
    make_graphs, compare = EXPORTERS[type(model)]
    model = deepcopy(model).cpu().float().eval()  # the caller's model stays unchanged
    files = [graph.save(Path(folder)) for graph in make_graphs(model)]
    with torch.no_grad():
        differences = compare(model, {file.stem: parity.OnnxSession(file) for file in files})
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"model: needs onnxruntime within {TOLERANCE} of torch, got "
                f"{difference:.2g} for {name}.onnx; try float32 weights, or report it"
            )
    return [OnnxFile(file, differences[file.stem]) for file in files]
