"""`rg.load`: a run, a pretrained model or a Hugging Face folder, by name or path."""

from pathlib import Path

from regard import models
from regard.errors import FileError
from regard.runs.hub_text_model import load_hub_text_model
from regard.runs.pretrained import find_run
from regard.runs.run import RECIPE_FILE, WEIGHTS_FILE, Device, Run, default_device, load_run
from regard.runs.text_model import TextModel


def load(name_or_path: str | Path, *, device: Device | None = None) -> Run:
    """Open a run folder, a pretrained model by name, a saved model or a Hugging Face folder.

    Args:
        name_or_path: such as "runs/mine", "phrases" or a folder with a config.json.
        device: where to put the model; None is CUDA where available, else the CPU.

    >>> rg.load("glyphs").verbs
    ['classify', 'evaluate', 'export', 'quantize']
    >>> rg.load("phrase")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.FileError: phrase: needs to be a run, a saved model or one of ...; try phrases
    """
    path, device = find_run(name_or_path), device or default_device()
    if (path / RECIPE_FILE).is_file():
        return load_run(path, device=device)
    if path.is_dir() and (path / "config.json").is_file():
        hub_model = load_hub_text_model(path).on(device)
        return Run(path, None, hub_model.model, None, hub_model=hub_model)
    if path.is_dir() and not (path / WEIGHTS_FILE).is_file():
        raise FileError(
            f"{path}: needs {WEIGHTS_FILE} of ours or config.json of Hugging Face, got neither"
        )
    return Run(path, None, models.load(path).to(device).eval(), None)


def load_text_model(path: str | Path, *, device: Device | None = None) -> TextModel:
    """The model at a path with its tokenizer, for recording attention; paths are those of `load`.

    >>> import tempfile
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10))
    >>> text_model = load_text_model(rg.models.save(model, tempfile.mkdtemp()))
    >>> text_model.look("3 1 4").names
    ['decoder.0.self', 'decoder.1.self']
    """
    return load(path, device=device).text_model
