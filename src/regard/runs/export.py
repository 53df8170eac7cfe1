"""Export of a run for other programs: ONNX files, the tokenizer and export.json."""

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
from regard.runs.contents import RunContents, require_verb
from regard.runs.text_model import model_on

EXPORT_FILE = "export.json"


def export_run(run: RunContents, folder: str | Path) -> list[OnnxFile]:
    """Write ONNX files compared with torch, the tokenizer and export.json into a folder.

    export.json holds what a program needs beside the model: the end token and the first decoder
    token of each language, text normalisation, class names, or sample rate and frame sizes.

    >>> import tempfile
    >>> [file.name for file, _ in rg.load("phrases", device="cpu").export(tempfile.mkdtemp())]
    ['encoder.onnx', 'step.onnx']
    """
    if not isinstance(run, RunContents):
        raise ConfigError(
            f"run: needs a run, got {type(run).__name__}; try rg.models.export_onnx for a model"
        )
    require_verb(run, "export")
    folder = Path(folder)
    files = export_onnx(model_on(run.model, "cpu"), folder)
    info: dict[str, Any] = {"model": type(run.model).__name__}
    info["max_abs_difference"] = {file.name: float(f"{diff:.2g}") for file, diff in files}
    info |= _task_info(run)
    if run.tokenizer is not None:
        run.tokenizer.save(folder)
    write_text(folder / EXPORT_FILE, json.dumps(info, indent=1, ensure_ascii=False) + "\n")
    return files


def _task_info(run: RunContents) -> dict[str, Any]:
    if isinstance(run.model, Recogniser):
        config = run.model.config
        window, hop = frame_sizes(config.sample_rate)
        frames = run.model.subsample.factor * (config.chunk or 1)
        sizes = {"rate": config.sample_rate, "window": window, "hop": hop, "chunk_frames": frames}
        # what `data.normalize_recording` does to samples before the frames are computed
        level = {"peak": 1.0, "dither": select_dither(config), "padding": PAD_SECONDS}
        return {"blank": BLANK, **sizes, **level}
    if isinstance(run.model, VisionTransformer):
        return {"image": run.model.config.image_size, "classes": class_names(run)}
    tokenizer: Tokenizer | None = run.tokenizer
    if tokenizer is None:
        return {}
    languages = {name: tokenizer.language_id(name) for name in tokenizer.languages}
    names = getattr(run.data, "names", ())  # of labelled or tagged texts
    ids = {"classes": list(names)} if names else {}
    ids |= {"start": tokenizer.bos_id, "end": tokenizer.eos_id, "language_ids": languages}
    return ids | {"normalize": list(tokenizer.normalizers)}  # steps before tokenisation
