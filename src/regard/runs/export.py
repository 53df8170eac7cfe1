"""A run as files for other programs: its model as ONNX, its tokenizer, and what to know of both."""

import json
from pathlib import Path
from typing import Any

from regard.data import Tokenizer
from regard.data.audio.peak_normalization import PAD_SECONDS
from regard.decode.streaming.transcriber import select_dither
from regard.errors import ConfigError
from regard.files import write_text
from regard.models import OnnxFile, Recogniser, VisionTransformer, export_onnx
from regard.models.recogniser import BLANK
from regard.ops.audio.log_mel import frame_sizes
from regard.runs.apply.classify import class_names
from regard.runs.run import Run

EXPORT_FILE = "export.json"


def export_run(run: Run, folder: str | Path) -> list[OnnxFile]:
    """Write a run into a folder: ONNX files checked against torch, the tokenizer, export.json.

    export.json says what a program has to know: the end's token and each language's first one, how
    texts are normalised, the names of classes, or the rate and frames of sound. This is
    `rg.export`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> [file.name for file, _ in export_run(rg.load_pretrained("phrases"), folder)]
    ['encoder.onnx', 'step.onnx']
    >>> sorted(path.name for path in folder.iterdir())
    ['encoder.onnx', 'export.json', 'step.onnx', 'tokenizer.json']
    >>> json.loads((folder / "export.json").read_text())["first"]["de"]
    5
    """
    if not isinstance(run, Run):
        raise ConfigError(
            f"run: needs a run, got {type(run).__name__}; try rg.models.export_onnx for a model"
        )
    model, folder = run.model, Path(folder)
    files = export_onnx(model, folder)
    about: dict[str, Any] = {"model": type(model).__name__}
    about["difference"] = {file.name: float(f"{apart:.2g}") for file, apart in files}
    about |= _to_know(run)
    if run.tokenizer is not None:
        run.tokenizer.save(folder)
    write_text(folder / EXPORT_FILE, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return files


def _to_know(run: Run) -> dict[str, Any]:
    if isinstance(run.model, Recogniser):
        config = run.model.config
        window, hop = frame_sizes(config.sample_rate)
        pieces = run.model.subsample.factor * (config.chunk or 1)
        sizes = {"rate": config.sample_rate, "window": window, "hop": hop, "frames": pieces}
        # what `data.normalize_recording` does to a sound before its frames are made
        level = {"peak": 1.0, "dither": select_dither(config), "padding": PAD_SECONDS}
        return {"blank": BLANK, **sizes, **level}
    if isinstance(run.model, VisionTransformer):
        return {"image": run.model.config.image_size, "classes": class_names(run)}
    tokenizer: Tokenizer | None = run.tokenizer
    if tokenizer is None:
        return {}
    languages = {name: tokenizer.language_id(name) for name in tokenizer.languages}
    ids = {"start": tokenizer.bos_id, "end": tokenizer.eos_id, "first": languages}
    return ids | {
        "normalize": list(tokenizer.normalizers)
    }  # steps before a text is cut into tokens
