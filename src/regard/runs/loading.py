"""Runs, pretrained models, presets and Hugging Face folders by name or path; a table of runs."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import models
from regard.errors import ConfigError, FileError, RegardError, suggestion
from regard.models.serialization import WEIGHTS_FILE
from regard.runs.baseline import read_baseline
from regard.runs.contents import (
    RECIPE_FILE,
    Device,
    default_device,
    files_version,
    load_tokenizer,
    read_recipe,
    read_result,
)
from regard.runs.downloads import DOWNLOADS, HUB_ID, downloaded, find_hub_model
from regard.runs.hub_model import build_hub_model, load_hub_text_model
from regard.runs.run import Run, load_run
from regard.runs.settings import iter_settings
from regard.train import read_metrics
from regard.train.loop import CHECKPOINTS

ATTEMPTS = 3  # to open a run whose files change meanwhile
# runs without checkpoints, in half precision
PRETRAINED_FOLDER = Path(__file__).parents[1] / "pretrained"


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
    for _ in range(ATTEMPTS):
        version = files_version(path)
        run = _open(path, device)
        if files_version(path) == version:
            return replace(run, version=version)
    raise FileError(
        f"{path}: needs files that stay as they are while they are read, got changed ones; "
        "try again once they are written"
    )


def _open(path: Path, device: Device) -> Run:
    if (path / RECIPE_FILE).is_file():
        return load_run(path, device=device)
    if is_hub_folder(path):
        hub_model = load_hub_text_model(path).on(device)
        return Run(path, None, hub_model.model, None, hub_model=hub_model)
    if path.is_dir() and not (path / WEIGHTS_FILE).is_file():
        raise FileError(
            f"{path}: needs {WEIGHTS_FILE} of ours or config.json of Hugging Face, got neither"
        )
    tokenizer = load_tokenizer(path) if path.is_dir() else None
    return Run(path, None, models.load(path).to(device).eval(), tokenizer)


def pretrained_names() -> list[str]:
    """Names of the pretrained models: those included, and those that `get` has downloaded.

    >>> "phrases" in pretrained_names()
    True
    """
    included = (file.parent.name for file in PRETRAINED_FOLDER.glob(f"*/{RECIPE_FILE}"))
    return sorted([*included, *filter(downloaded, DOWNLOADS)])


def find_run(name: str | Path) -> Path:
    """The folder of a run or saved model, given by its path or as the name of a pretrained model.

    A folder of that name takes precedence if it holds a run or a model; one of other files, such as
    recordings in `morse/`, does not hide the pretrained model. `./morse` is always the folder.

    >>> find_run("phrases").parent.name
    'pretrained'
    """
    path, is_pretrained = Path(name), str(name) in pretrained_names()
    if path.exists() and (holds_model(path) or not is_pretrained):
        return path
    if is_pretrained:
        return downloaded(str(name)) or PRETRAINED_FOLDER / name
    if (folder := find_hub_model(str(name))) is not None:
        return folder
    if str(name) in DOWNLOADS or HUB_ID.fullmatch(str(name)):
        raise FileError(
            f"{name}: needs to be a run, a saved model, or one that was downloaded, got no such "
            f"file; try regard get {name}"
        )
    names = pretrained_names()
    known = f"the pretrained models {', '.join(names)}" if names else "no pretrained model"
    raise FileError(
        f"{name}: needs to be a run, a saved model or one of {known}, got no such file"
        f"{suggestion(str(name), names)}"
    )


def holds_model(path: Path) -> bool:
    """Whether a folder holds a run or a model of ours."""
    return any((path / name).exists() for name in (RECIPE_FILE, WEIGHTS_FILE, CHECKPOINTS))


def is_hub_folder(path: Path) -> bool:
    """Whether a folder is one of Hugging Face, with weights or without."""
    return (path / "config.json").is_file() and not (path / RECIPE_FILE).is_file()


def build_or_load_model(name: str, *, vocab: int = 32000, classes: int = 10) -> nn.Module:
    """A model by the name of a preset or pretrained model, or by its path.

    A preset, or the model of a Hugging Face folder, is built on the meta device: it has all shapes,
    and its weights take no memory.

    >>> model = build_or_load_model("translator_base")
    >>> model.readout.weight, next(model.parameters()).device
    (None, device(type='meta'))
    """
    if name in preset_names():
        preset, sizes = getattr(models, name), {"vocab": vocab, "classes": classes}
        config = preset(**{key: sizes[key] for key in _required_arguments(preset)})
        with torch.device("meta"):
            return models.build(config)
    if is_hub_folder(Path(name)):
        return build_hub_model(Path(name))
    if Path(name).exists() or name in pretrained_names():
        return models.load(find_run(name)).float()
    known = [*preset_names(), *pretrained_names()]
    near = get_close_matches(name, known, 1, 0.5) or ["translator_base"]
    raise ConfigError(
        f"name: needs a saved model or one of {', '.join(known)}, got {name!r}; try {near[0]}"
    )


def preset_names() -> list[str]:
    """Names of the model presets: functions that return the config of a model."""
    configs = models.config_types().values()
    functions = {name: getattr(models, name) for name in models.__all__}
    return [
        name
        for name, function in functions.items()
        if isfunction(function)
        and signature(function).return_annotation in configs
        and _required_arguments(function) <= {"vocab", "classes"}
    ]


def _required_arguments(function: Callable[..., Any]) -> set[str]:
    parameters = signature(function).parameters.values()
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    return {p.name for p in named if p.default is p.empty}


def list_runs(folder: str | Path) -> list[dict[str, Any]]:
    """One row per run: name, recipe, step, state, scores, and the settings that differ.

    Scores are those on the test split for a finished run, else the latest on the valid split.
    `baseline` is the verdict of a finished run, else the scores that it has to beat.

    >>> import tempfile
    >>> list_runs(tempfile.mkdtemp())
    []
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder}: needs to be a folder with runs, got no such folder")
    rows, settings = [], dict[str, dict[str, Any]]()
    for run in sorted(file.parent for file in folder.glob(f"*/{RECIPE_FILE}")):
        try:
            rows.append(_row(run))
            settings[run.name] = dict(iter_settings(read_recipe(run)))
        except RegardError as error:  # a damaged run does not hide the others
            rows.append({"run": run.name, "state": str(error)})
    names = {name for values in settings.values() for name in values}
    differ = sorted(n for n in names if len({repr(s.get(n)) for s in settings.values()}) > 1)
    for row in rows:
        values = settings.get(row["run"], {})
        row["differs"] = {name: values[name] for name in differ if name in values}
    return rows


def _row(run: Path) -> dict[str, Any]:
    recipe, result, metrics = read_recipe(run), read_result(run), read_metrics(run)
    valid = [line for line in metrics if "valid_loss" in line]
    last = {n.removeprefix("valid_"): x for n, x in (valid or [{}])[-1].items() if "valid_" in n}
    scores = result.get("test", last)
    return {
        "run": run.name,
        "recipe": recipe.name,
        "step": result.get("step", metrics[-1]["step"] if metrics else 0),
        "steps": recipe.train.steps,
        "state": result.get("reason", "not finished"),
        "split": "test" if result else "valid",
        "scores": {n: x for n, x in scores.items() if isinstance(x, int | float)},
        "seconds": result.get("seconds", metrics[-1]["seconds"] if metrics else 0.0),
        "baseline": result.get("baseline", {}).get("verdict") or str(read_baseline(run) or ""),
    }
