"""A run for other programs: ONNX files, a Hugging Face folder, or int8 weights."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from regard import models
from regard.data import Tokenizer
from regard.data.audio.peak_normalization import PAD_SECONDS
from regard.data.text.fast_tokenizer import fast_tokenizer_files
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.decode.streaming import select_dither
from regard.errors import ConfigError, FileError
from regard.files import atomic_write, make_folder, read_text, write_text
from regard.models import OnnxFile, Recogniser, VisionTransformer, export_onnx
from regard.models.serialization import WEIGHTS_FILE
from regard.models.speech import BLANK
from regard.ops.audio import frame_sizes
from regard.runs.contents import RECIPE_FILE, RESULT_FILE, RunContents
from regard.runs.evaluate import evaluate_run
from regard.runs.report.facts import CARD_FILE, RunFacts, model_card
from regard.tasks import LanguageTask, TranslationTask
from regard.tasks.classification.pipeline import class_names
from regard.tasks.labels import LabelsTask, encode_text
from regard.tasks.pipeline import Device, model_on, require_verb
from regard.train.metrics import CALIBRATION_FILE

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


class QuantizationResult(NamedTuple):
    """File sizes of the weights in bytes, and scores on the test split, before and after."""

    file_sizes: tuple[int, int]
    scores_before: dict[str, Any]
    scores_after: dict[str, Any]


def quantize_run(
    run: RunContents, folder: str | Path, *, score: bool = True, device: Device | None = None
) -> QuantizationResult:
    """Write a run with int8 weights into a new folder, and evaluate both.

    The result is a run that every command takes. On a CPU its matrix products are int8 too.

    Args:
        run: the run to quantise; it is not changed.
        folder: the new folder.
        score: evaluate both on the test split.
        device: where the float run is evaluated; None is where its model is.

    >>> import tempfile
    >>> sizes = rg.load("glyphs", device="cpu").quantize(tempfile.mkdtemp(), score=False).file_sizes
    >>> sizes[1] < 0.6 * sizes[0]
    True
    """
    from regard.runs.run import load_run  # whose class has this function as a method

    require_verb(run, "quantize")
    assert run.folder is not None
    folder = Path(folder)
    if (folder / RECIPE_FILE).exists():
        raise FileError(f"{folder}: needs to be without a run, got one; try another folder")
    models.save(models.quantize(model_on(run.model, "cpu")), make_folder(folder))
    # the recipe last: it marks the folder as complete
    for name in (TOKENIZER_FILE, CALIBRATION_FILE, RECIPE_FILE):
        if (run.folder / name).exists():
            with atomic_write(folder / name) as path:
                shutil.copyfile(run.folder / name, path)
    before = evaluate_run(run, device=device).scores if score else {}
    after = evaluate_run(load_run(folder)).scores if score else {}
    if run.result:
        result = {**run.result, "test": after}
        write_text(folder / RESULT_FILE, json.dumps(result, indent=1) + "\n")
    old, new = run.folder / WEIGHTS_FILE, folder / WEIGHTS_FILE
    sizes = (old.stat().st_size if old.exists() else 0, new.stat().st_size)
    return QuantizationResult(sizes, before, after)


README = "README.md"  # the Hub shows it
BILINEAR = 2  # of Pillow


def save_run_pretrained(
    run: RunContents, folder: str | Path, *, model_type: str | None = None
) -> Path:
    """Save a run as a Hugging Face folder that transformers opens with the same ids and logits.

    Writes config.json with the names of the classes, model.safetensors, the tokenizer as a fast
    tokenizer, for images preprocessor_config.json, and the model card as README.md. A model with
    an option that its family does not have there is refused by the name of the option.

    Args:
        run: of a task on text or images, whose model is of a family in `models.hub`.
        folder: where to write.
        model_type: the family, such as "llama"; by default the first that fits.

    >>> import tempfile
    >>> folder = rg.load("stdlib", device="cpu").save_pretrained(tempfile.mkdtemp())
    >>> sorted(file.name for file in folder.iterdir())[:3]
    ['README.md', 'config.json', 'model.safetensors']
    """
    require_verb(run, "export")
    folder = Path(folder)
    options, files = dict[str, Any](), dict[str, str]()
    tokenizer: Any = run.tokenizer
    if tokenizer is not None:
        prefix, suffix = _edges(run)
        files = fast_tokenizer_files(tokenizer, prefix=prefix, suffix=suffix)
        start = prefix[0] if prefix else tokenizer.bos_id
        options |= {"bos_token_id": start, "eos_token_id": tokenizer.eos_id}
        options["pad_token_id"] = tokenizer.pad_id
    if isinstance(run.data, TranslationTask) and tokenizer is not None:
        languages = run.data.target_languages(tokenizer)
        if len(languages) > 1:  # the first decoder token names one
            known = ", ".join(languages)
            raise ConfigError(f"languages: needs one target language, got {known}; try export")
        options["decoder_start_token_id"] = tokenizer.language_id(languages[0])
    names = list(getattr(run.data, "class_names", ()))
    if names:
        options["id2label"] = {str(n): name for n, name in enumerate(names)}
        options["label2id"] = {name: n for n, name in enumerate(names)}
    models.save_pretrained(run.model, folder, model_type=model_type, options=options)
    if isinstance(run.model, models.VisionTransformer):
        side = run.model.config.image_size
        image = {"image_processor_type": "ViTImageProcessor", "do_resize": True}
        image |= {"size": {"height": side, "width": side}, "resample": BILINEAR}
        image |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": False}
        files["preprocessor_config.json"] = json.dumps(image, indent=1) + "\n"
    card = None if run.folder is None else run.folder / CARD_FILE
    if card is not None and card.is_file():
        files[README] = read_text(card)
    else:  # with the scores of result.json
        files[README] = model_card(RunFacts(run, None, None, None, None))
    for name, text in files.items():
        write_text(folder / name, text)
    return folder


def _edges(run: RunContents) -> tuple[list[int], list[int]]:
    """The special tokens before and after an input of the run's task."""
    if isinstance(run.data, LanguageTask):
        return run.data.document_edges(run.tokenizer), []
    if isinstance(run.data, LabelsTask):
        return encode_text(run.tokenizer, ""), []
    return [], [run.tokenizer.eos_id] if isinstance(run.data, TranslationTask) else []
