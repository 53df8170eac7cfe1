"""What a run consists of, and the files of its folder."""

import json
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from regard import models
from regard.data import Tokenizer
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.errors import ConfigError, FileError
from regard.files import parse_json, write_text
from regard.ops.maybe_none import MaybeNone
from regard.runs.settings import UnknownKind, config_from_json, config_to_json
from regard.runs.text_model import TextModel
from regard.tasks import Pipeline, Recipe, Task, recipe_config_types
from regard.tasks.pipeline import Device, run_on
from regard.train import Calibration
from regard.train.loop import CHECKPOINTS

RECIPE_FILE, RESULT_FILE = "recipe.json", "result.json"
RECIPE_TOML = "recipe.toml"  # the file that a run was trained from, as it was
BASELINE = "baseline"  # the reason in the result of a run that was fitted, not trained
VERSION = 1  # of the folder's layout
MODEL_SUFFIXES = (".safetensors", ".json", ".model", ".txt")  # weights, configs, tokenizers

R = TypeVar("R", bound="RunContents")


@dataclass(frozen=True, eq=False)
class RunContents:
    """What a run consists of; `Run` adds its verbs."""

    folder: Path | None  # None for a run that is not on disk
    recipe: Recipe | MaybeNone  # None for a model without one
    model: Any
    tokenizer: Any
    metrics: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | MaybeNone = None
    hub_model: TextModel | None = None  # of a Hugging Face folder: the model with its tokenizer
    version: Hashable = None  # of its files when it was opened, as `files_version` gives it

    @property
    def data(self) -> Any:
        """The task of the recipe (a `Task`), with the settings of its data."""
        assert self.recipe is not None
        return self.recipe.data

    def on(self: R, device: Device | None) -> R:
        """The run with its model on a device: itself if it is there, else with a copy."""
        return run_on(self, device)

    def pipeline(self, **options: Any) -> Pipeline:
        """The model ready to be applied, with options of the task, such as `to=["de"]`."""
        return self._pipeline(options)

    def parse_pipeline(self, texts: dict[str, str]) -> Pipeline:
        """`pipeline` with options as texts, such as `{"to": "de,fr"}`."""
        return self._pipeline(texts, parse=True)

    def _pipeline(self, options: dict[str, Any], *, parse: bool = False) -> Pipeline:
        if self.recipe is None:
            raise ConfigError(
                "run: needs a recipe to be applied, got a model alone; try rg.look(model)"
            )
        task: Task = self.data
        values = task.Options.make(f"task {task.name}", options, parse=parse)
        return task.pipeline(self, values)

    @property
    def verbs(self) -> list[str]:
        """Names of the methods that this run supports."""
        look = ["look"] if self.hub_model or TextModel.supports(self.model) else []
        if self.recipe is None:
            is_headless = isinstance(self.model, models.Classifier) and self.model.head is None
            return [*look, *(["embed"] if is_headless and self.tokenizer is not None else [])]
        return [self.recipe.data.verb, *look, "evaluate", "export", "quantize"]

    @property
    def text_model(self) -> TextModel:
        """The model with its tokenizer, for recording attention on a text."""
        labels = getattr(self.recipe and self.recipe.data, "class_names", ())
        if self.hub_model is not None:
            return self.hub_model
        text_model = TextModel.from_model(self.model, self.tokenizer, labels)
        if self.recipe is not None or self.tokenizer is None or "embed" not in self.verbs:
            return text_model
        # an encoder without a task reads special tokens around a text, as BERT does
        prefix, suffix = (self.tokenizer.bos_id,), (self.tokenizer.eos_id,)
        return replace(text_model, prefix=prefix, suffix=suffix)


def default_device() -> torch.device:
    """CUDA where it is available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_recipe(folder: str | Path) -> Recipe:
    """The recipe of a run.

    >>> read_recipe(rg.runs.find_run("morse")).name
    'morse'
    """
    file = Path(folder) / RECIPE_FILE
    if not file.is_file():
        raise FileError(f"{folder}: needs to be the folder of a run, got no {RECIPE_FILE} in it")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise FileError(f"{file}: needs version {VERSION}, got {content['version']}")
        recipe = config_from_json(Recipe, content["recipe"], "recipe", recipe_config_types())
        if not is_dataclass(recipe.model):
            raise ValueError(f"the model {recipe.model!r:.40}")
        return recipe
    except UnknownKind as error:
        kind = str(error).rpartition(" got ")[2]
        hint = "importing the file that registers it, in Python or by regard --import FILE"
        raise FileError(
            f"{file}: needs a registered task and model, got {kind}; try {hint}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file}: needs a recipe, got a damaged one, {error}") from error


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write the recipe of a run."""
    content = {"version": VERSION, "recipe": config_to_json(recipe)}
    write_text(folder / RECIPE_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_result(folder: str | Path) -> dict[str, Any]:
    """The final scores of a run; empty if it has not finished."""
    file = Path(folder) / RESULT_FILE
    if not file.is_file():
        return {}
    try:
        result = parse_json(file.read_text(encoding="utf-8"))
        types = {"step": int, "reason": str, "seconds": int | float, "valid": dict, "test": dict}
        for name, kind in types.items():
            if not isinstance(result[name], kind):
                raise ValueError(f"{name} is {result[name]!r:.40}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileError(
            f"{file}: needs the result of a run, got a damaged file, {error}"
        ) from error
    return result


def files_version(path: Path) -> Hashable:
    """Differs whenever a file changed that a model is loaded from: `path`, or those in its folder.

    The time of change, unlike that of modification, cannot be copied or set.
    """
    files = [path]
    with suppress(OSError):  # no folder, or one that cannot be listed
        files += [file for file in path.iterdir() if file.suffix in MODEL_SUFFIXES]
        files += [*(path / CHECKPOINTS).glob("*"), *(path / CHECKPOINTS).glob("*/*")]
    states = []
    for file in sorted(files):
        with suppress(OSError):
            x = file.stat()
            # not of a folder: the size and time of one change with any file in it, such as a log
            states.append((file.name, x.st_ino, *([x.st_size, x.st_ctime_ns] * file.is_file())))
    return tuple(states)


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a run; None if its data has no text."""
    return Tokenizer.load(folder) if (folder / TOKENIZER_FILE).exists() else None


def build_model(recipe: Recipe, tokenizer: Tokenizer | None) -> nn.Module:
    """The model of a recipe, with the sizes of its data, initialised from the recipe's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        model = models.build(recipe.data.resolve(recipe.model, tokenizer))
        recipe.data.prepare_model(model, tokenizer, recipe.train)
        return model


def new_run_folder(parent: str | Path, name: str) -> Path:
    """A path for a new run: `name`, or `name` with the first free number appended.

    >>> new_run_folder("nowhere", "phrases")
    PosixPath('nowhere/phrases')
    """
    if not name or "/" in name:
        raise ConfigError(f"name: needs one word, got {name!r}")
    folder, number = Path(parent) / name, 1
    while folder.exists():
        number += 1
        folder = Path(parent) / f"{name}-{number}"
    return folder
