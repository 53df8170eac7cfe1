"""Export of models to ONNX, each file compared with torch in onnxruntime."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.files import import_extra
from regard.models.classifier import Classifier
from regard.models.config import StackConfig, check_implemented, get_config
from regard.models.language import LanguageModel
from regard.models.onnx import graphs
from regard.models.onnx.emit import Graph
from regard.models.recurrent import RecurrentTranslator
from regard.models.speech import Recogniser
from regard.models.translator import Translator
from regard.models.vision import VisionTransformer
from regard.ops import log_mel
from regard.ops.audio import frame_sizes

LENGTHS = torch.tensor([7, 4])  # of two sequences, one of them padded
PREFILL = [3, 1, 1]  # the first tokens in one call, the rest one by one


class OnnxSession:
    """An onnxruntime session of an exported file; outputs are returned by name."""

    def __init__(self, file: Path):
        onnxruntime = import_extra("onnxruntime", "export", "to check an export")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a check is small
        providers = ["CPUExecutionProvider"]
        self.session: Any = onnxruntime.InferenceSession(str(file), options, providers=providers)
        self.inputs = [x.name for x in self.session.get_inputs()]
        self.outputs = [x.name for x in self.session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Tensor] | None = None, **more: Tensor):
        """Run the graph; inputs it does not have are ignored."""
        known = {**(inputs or {}), **more}
        feeds = {name: known[name].detach().numpy() for name in self.inputs}
        answers = self.session.run(self.outputs, feeds)
        return {name: torch.from_numpy(x) for name, x in zip(self.outputs, answers, strict=True)}


Sessions = Mapping[str, OnnxSession]  # by file name, as are the largest differences from torch
Differences = dict[str, float]


def compare_translator(model: Translator, runs: Sessions) -> Differences:
    """Encoder and decoding step, one source padded."""
    source, target = _tokens(model.config.source_vocab, 7), _tokens(model.config.target_vocab, 5)
    memory = model.encode(source, LENGTHS)
    pairs = model.decoder.project_memory(memory)
    encoded = runs["encoder"](tokens=source, lengths=LENGTHS)["memory"]
    want = torch.stack([torch.stack(pair) for pair in pairs])
    written = {"memory": encoded, "lengths": LENGTHS, "past": want[:, :, :, :, :0]}
    logits = torch.cat(_run_steps(runs["step"], written, "tokens", target.split(PREFILL, 1)), 1)
    real = (torch.arange(7) < LENGTHS[:, None])[:, None, :, None]
    return {
        "encoder": _max_difference(encoded * real, want * real),
        "step": _max_difference(logits, model.decode(target, memory, LENGTHS)),
    }


def compare_language(model: LanguageModel, runs: Sessions) -> Differences:
    """The decoding step, with the first tokens in one call."""
    tokens = _tokens(model.config.vocab, 5)
    past = {"past": _empty_cache(model.config)}
    logits = _run_steps(runs["step"], past, "tokens", tokens.split(PREFILL, 1))
    return {"step": _max_difference(torch.cat(logits, 1), model(tokens))}


def compare_recurrent(model: RecurrentTranslator, runs: Sessions) -> Differences:
    """Encoder and decoding step, one source padded."""
    source, target = _tokens(model.config.source_vocab, 7), _tokens(model.config.target_vocab, 3)
    memory = model.encode(source, LENGTHS)
    encoded = runs["encoder"](tokens=source, lengths=LENGTHS)
    real = (torch.arange(7) < LENGTHS[:, None])[..., None]
    differences = [_max_difference(encoded["state"], torch.stack(memory.state))]
    differences += [
        _max_difference(encoded[n] * real, getattr(memory, n) * real) for n in ("values", "keys")
    ]
    logits = _run_steps(runs["step"], {**encoded, "lengths": LENGTHS}, "tokens", target.unbind(1))
    step = _max_difference(torch.stack(logits, 1), model.decode(target, memory))
    return {"encoder": max(differences), "step": step}


def compare_vision(model: VisionTransformer, runs: Sessions) -> Differences:
    """Square images of the training size, and wider ones."""
    config, differences = model.config, []
    for width in (config.image_size, config.image_size + config.patch_size):
        images = _noise(2, config.channels, config.image_size, width)
        logits = runs["classifier"](images=images)["logits"]
        differences.append(_max_difference(logits, model(images)))
    return {"classifier": max(differences)}


def compare_classifier(model: Classifier, runs: Sessions) -> Differences:
    """Two sequences, one of them padded."""
    tokens = _tokens(model.config.vocab, 7)
    segments = tokens % max(1, model.config.segments)
    given = {"tokens": tokens, "lengths": LENGTHS, "segments": segments}
    want = model(tokens, LENGTHS, segments=segments if model.config.segments else None)
    return {"classifier": _max_difference(runs["classifier"](given)["logits"], want)}


def compare_recogniser(model: Recogniser, runs: Sessions) -> Differences:
    """Three pieces: the first longer than the cache, the last not a full chunk."""
    config, (window, hop) = model.config, frame_sizes(model.config.sample_rate)
    assert config.chunk is not None
    assert config.left_chunks is not None
    full = model.subsample.factor * config.chunk
    pieces = [full * (config.left_chunks + 2), full, 3]
    wave = _noise(2, window + hop * (sum(pieces) - 1))
    want = log_mel(wave, config.sample_rate, n_mels=config.n_mels)
    frames = runs["features"](wave=wave)["frames"]
    log_probs = _run_steps(runs["step"], _initial_state(model), "frames", want.split(pieces, 1))
    step = _max_difference(torch.cat(log_probs, 1), model(want)[0])
    return {"features": _max_difference(frames, want), "step": step}


def _initial_state(model: Recogniser) -> dict[str, Tensor]:
    """The initial state of two streams."""
    config, keep = model.config, model.subsample.left
    inputs = {
        f"inputs.{n}": torch.zeros(2, cast(nn.Conv1d, layer).in_channels, keep)
        for n, layer in enumerate(model.subsample.convolutions)
    }
    if config.cmvn_depth is not None:
        inputs["cmvn_state"] = torch.zeros(2, config.n_mels + 2)
    return {"past": _empty_cache(config), "offset": torch.zeros(1, dtype=torch.long), **inputs}


def _empty_cache(config: StackConfig) -> Tensor:
    return torch.zeros(config.layers, 2, 2, config.resolved_kv_heads, 0, config.resolved_head_dim)


def _run_steps(
    step: OnnxSession, state: Mapping[str, Tensor], name: str, pieces: Sequence[Tensor]
) -> list[Tensor]:
    """The result for each piece of an input; outputs NAME.next become the inputs NAME."""
    results = []
    for piece in pieces:
        outputs = step(state, **{name: piece})
        state = {**state, **{key.removesuffix(".next"): x for key, x in outputs.items()}}
        results += [x for key, x in outputs.items() if not key.endswith(".next")]
    return results


def _tokens(vocab: int, time: int) -> Tensor:
    return torch.randint(vocab, (2, time), generator=torch.Generator().manual_seed(0))


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _max_difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


TOLERANCE = 1e-4  # on the difference between onnxruntime and torch
STACK_OPTIONS = (  # those that emit.stack and emit.embedding compute
    "layers dim heads kv_heads head_dim ffn_dim activation gated norm norm_first final_norm "
    "eps bias qkv_bias out_bias scale softcap sinks rope_theta rotate_half skip positions "
    "max_positions scale_embedding embedding_norm segments tied output_norm parallel rope_dim "
    "rope_scaling qk_norm"
)


class Exporter(NamedTuple):
    """Makes the graphs of a model and compares them with torch; `options` are those it computes
    beside STACK_OPTIONS."""

    make_graphs: Callable[[Any], list[Graph]]
    compare: Callable[[Any, Sessions], Differences]
    options: str


EXPORTERS: dict[type[nn.Module], Exporter] = {
    Translator: Exporter(
        graphs.translator_graphs,
        compare_translator,
        "source_vocab target_vocab decoder_layers shared_embedding output_bias output_scale",
    ),
    LanguageModel: Exporter(
        graphs.language_graphs, compare_language, "vocab window output_softcap"
    ),
    RecurrentTranslator: Exporter(
        graphs.recurrent_graphs,
        compare_recurrent,
        "source_vocab target_vocab cell attention hidden shared_embedding",
    ),
    VisionTransformer: Exporter(
        graphs.vision_graphs, compare_vision, "classes image_size patch_size channels head"
    ),
    Classifier: Exporter(
        graphs.classifier_graphs, compare_classifier, "vocab classes pooling pooler"
    ),
    Recogniser: Exporter(
        graphs.recogniser_graphs,
        compare_recogniser,
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
        differences = exporter.compare(model, {file.stem: OnnxSession(file) for file in files})
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise ConfigError(
                f"model: needs onnxruntime within {TOLERANCE} of torch, got "
                f"{difference:.2g} for {name}.onnx; try float32 weights, or report it"
            )
    return [OnnxFile(file, differences[file.stem]) for file in files]
