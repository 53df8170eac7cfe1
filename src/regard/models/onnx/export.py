"""Export of models to ONNX, verified against torch."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.classifier import Classifier
from regard.models.config import check_implemented, get_config
from regard.models.language import LanguageModel
from regard.models.onnx import parity, recurrent, transformers
from regard.models.onnx.graph import Graph
from regard.models.recurrent import RecurrentTranslator
from regard.models.speech import Recogniser
from regard.models.translator import Translator
from regard.models.vision import VisionTransformer

TOLERANCE = 1e-4  # on the difference between onnxruntime and torch
STACK_OPTIONS = (  # those that emit.stack and emit.embedding compute
    "layers dim heads kv_heads head_dim ffn_dim activation gated norm norm_first final_norm "
    "eps bias qkv_bias out_bias scale softcap sinks rope_theta rotate_half skip positions "
    "max_positions scale_embedding embedding_norm segments tied"
)


class Exporter(NamedTuple):
    """Makes the graphs of a model and compares them with torch; `options` are those it computes
    beside STACK_OPTIONS."""

    make_graphs: Callable[[Any], list[Graph]]
    compare: Callable[[Any, parity.Sessions], parity.Differences]
    options: str


EXPORTERS: dict[type[nn.Module], Exporter] = {
    Translator: Exporter(
        transformers.translator_graphs,
        parity.compare_translator,
        "source_vocab target_vocab decoder_layers shared_embedding output_bias output_scale",
    ),
    LanguageModel: Exporter(transformers.language_graphs, parity.compare_language, "vocab window"),
    RecurrentTranslator: Exporter(
        recurrent.recurrent_graphs,
        parity.compare_recurrent,
        "source_vocab target_vocab cell attention hidden shared_embedding",
    ),
    VisionTransformer: Exporter(
        transformers.vision_graphs,
        parity.compare_vision,
        "classes image_size patch_size channels head",
    ),
    Classifier: Exporter(
        transformers.classifier_graphs, parity.compare_classifier, "vocab classes pooling pooler"
    ),
    Recogniser: Exporter(
        transformers.recogniser_graphs,
        parity.compare_recogniser,
        "vocab sample_rate n_mels chunk left_chunks cmvn_depth filters",
    ),
}


class OnnxFile(NamedTuple):
    """One exported file and its largest difference from torch's output."""

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
    exporter = EXPORTERS[type(model)]
    check_implemented(get_config(model), f"{STACK_OPTIONS} {exporter.options}", "to export")
    model = deepcopy(model).cpu().float().eval()  # the caller's model stays unchanged
    files = [graph.save(Path(folder)) for graph in exporter.make_graphs(model)]
    with torch.no_grad():
        differences = exporter.compare(
            model, {file.stem: parity.OnnxSession(file) for file in files}
        )
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"model: needs onnxruntime within {TOLERANCE} of torch, got "
                f"{difference:.2g} for {name}.onnx; try float32 weights, or report it"
            )
    return [OnnxFile(file, differences[file.stem]) for file in files]
