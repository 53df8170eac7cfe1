"""A run as a Hugging Face folder: model, fast tokenizer, class names and model card."""

import json
from pathlib import Path
from typing import Any

from regard import models
from regard.data.text.fast_tokenizer import fast_tokenizer_files
from regard.errors import ConfigError
from regard.files import read_text, write_text
from regard.runs.contents import RunContents, require_verb
from regard.runs.report.card import CARD_FILE, model_card
from regard.runs.report.facts import RunFacts
from regard.tasks import LanguageTask, TranslationTask
from regard.tasks.labels import LabelsTask, encode_text

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
