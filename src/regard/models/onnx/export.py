"""A model as ONNX files, each run once and compared before it is handed over."""

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.classifier import Classifier
from regard.models.language import LanguageModel
from regard.models.onnx import decoders, encoders, recurrent
from regard.models.onnx.graph import Graph
from regard.models.onnx.parity import compare_with_torch
from regard.models.recogniser import Recogniser
from regard.models.recurrent import RecurrentTranslator
from regard.models.translator import Translator
from regard.models.vision import VisionTransformer

TOLERANCE = 1e-4  # how far an answer of onnxruntime may be from torch's


class OnnxFile(NamedTuple):
    """One file: where it is, and how far its answers were from torch's at most.

    >>> OnnxFile(Path("encoder.onnx"), 2e-6).file.name
    'encoder.onnx'
    """

    file: Path
    difference: float


def export_onnx(model: nn.Module, folder: str | Path) -> list[OnnxFile]:
    """Write a model as ONNX files into a folder, and compare their answers with torch's.

    |onnxruntime - torch| ≤ 0.0001 for every number of a small input, or it is an error

    A translator becomes `encoder` and `step`, a language model `step`, a recogniser `features` and
    `step`, a classifier `classifier`. Batch and length are free in all of them.

    >>> import tempfile
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> [(file.name, difference < 1e-4) for file, difference in
    ...     export_onnx(model, tempfile.mkdtemp())]
    [('step.onnx', True)]
    """
    model = deepcopy(model).cpu().float().eval()  # the caller's own stays as it is
    graphs = _graphs(model)
    files = [graph.save(Path(folder)) for graph in graphs]
    with torch.no_grad():
        found = compare_with_torch(model, {file.stem: file for file in files})
    for name, difference in found.items():
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"model: needs answers of onnxruntime within {TOLERANCE} of torch's, got "
                f"{difference:.2g} for {name}.onnx; try float32 weights, or report it"
            )
    return [OnnxFile(file, found[file.stem]) for file in files]


def _graphs(model: nn.Module) -> list[Graph]:
    makers: dict[type[nn.Module], Any] = {
        Translator: decoders.translator_graphs,
        LanguageModel: decoders.language_graphs,
        RecurrentTranslator: recurrent.recurrent_graphs,
        VisionTransformer: encoders.vision_graphs,
        Classifier: encoders.classifier_graphs,
        Recogniser: encoders.recogniser_graphs,
    }
    if type(model) not in makers:
        known = ", ".join(kind.__name__ for kind in makers)
        raise ConfigError(f"model: needs one of {known} to export, got {type(model).__name__}")
    relative = getattr(model.config, "relative_bias", "none")
    if relative != "none":
        raise ConfigError(
            f"relative_bias: needs none to export, got {relative!r}; try rotary or other positions"
        )
    return makers[type(model)](model)
