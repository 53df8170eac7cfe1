"""`Run`: a training run on disk, opened, with the verbs of its task as methods."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard import models
from regard.data import Tokenizer
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.errors import ConfigError, FileError
from regard.files import parse_json
from regard.models.serialization import WEIGHTS_FILE, check_config_against_tensors
from regard.runs.settings import config_from_json
from regard.runs.text_model import TextModel
from regard.tasks import EvalSplit, Recipe, recipe_config_types
from regard.train import (
    Calibration,
    load_calibration,
    load_last_valid,
    load_weights,
    read_metrics,
)
from regard.train.loop import CHECKPOINTS

if TYPE_CHECKING:
    from regard.decode import Sampling
    from regard.inspection import Sight
    from regard.models import OnnxFile
    from regard.runs.apply.classify import ClassPrediction
    from regard.runs.evaluate import Evaluation
    from regard.runs.quantize import QuantizationResult

RECIPE_FILE, RESULT_FILE = "recipe.json", "result.json"
VERSION = 1  # of the folder's layout

Device = str | torch.device

TASK_MODELS: dict[str, tuple[type[nn.Module], ...]] = {
    "translate": (models.Translator, models.RecurrentTranslator),
    "generate": (models.LanguageModel,),
    "transcribe": (models.Recogniser,),
    "classify": (models.VisionTransformer, models.ResNet),
}


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with its recipe, tokenizer, metrics and scores.

    `verbs` lists the methods that its task supports; any other raises a ConfigError. A verb never
    moves the model: with `device=` it runs a copy there.

    A saved model without a recipe, or a Hugging Face folder, opens as a Run whose only verb is
    `look`.

    >>> run = rg.load("phrases", device="cpu")
    >>> run.verbs
    ['translate', 'look', 'evaluate', 'export', 'quantize']
    >>> run.translate(["3 days"], to=["de"])
    {'de': ['3 Tage']}
    """

    folder: Any  # a Path; None for a run that is not on disk
    recipe: Any  # a Recipe; None for a model without one
    model: Any
    tokenizer: Any
    metrics: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    hub_model: TextModel | None = None  # of a Hugging Face folder: the model with its tokenizer

    @property
    def verbs(self) -> list[str]:
        """Names of the methods that this run supports."""
        task = [] if self.recipe is None else [v for v in TASK_MODELS if can(self, v)]
        look = ["look"] if self.hub_model or TextModel.supports(self.model) else []
        return [*task, *look, *(["evaluate", "export", "quantize"] if self.recipe else [])]

    @property
    def text_model(self) -> TextModel:
        """The model with its tokenizer, for recording attention on a text."""
        return self.hub_model or TextModel.from_model(self.model, self.tokenizer)

    def translate(
        self,
        texts: str | Sequence[str],
        to: str | Sequence[str] = (),
        *,
        beam_width: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        device: Device | None = None,
    ) -> dict[str, list[str]]:
        """Translations by target language; see `regard.runs.translate_run`."""
        from regard.runs.apply.translate import translate_run

        return translate_run(
            self, texts, to, beam_width=beam_width, length_penalty=length_penalty,
            max_new_tokens=max_new_tokens, device=device,
        )  # fmt: skip

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        sampling: "Sampling | None" = None,
        device: Device | None = None,
    ) -> str:
        """The continuation of a prompt; `regard.runs.generate_run` yields it piece by piece."""
        from regard.runs.apply.generate import generate_run

        pieces = generate_run(
            self, prompt, max_new_tokens=max_new_tokens, sampling=sampling, device=device
        )
        return "".join(pieces)

    def transcribe(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        beam_width: int = 1,
        device: Device | None = None,
    ) -> list[str]:
        """The text of each audio file; see `regard.runs.transcribe_run`."""
        from regard.runs.apply.transcribe import transcribe_run

        return transcribe_run(self, paths, beam_width=beam_width, device=device)

    def classify(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        top: int = 1,
        invert: bool = False,
        device: Device | None = None,
    ) -> "list[ClassPrediction]":
        """The most probable classes of each image file; see `regard.runs.classify_run`."""
        from regard.runs.apply.classify import classify_run

        return classify_run(self, images, top=top, invert=invert, device=device)

    def look(
        self,
        text: str,
        *,
        target: str | None = None,
        to: str | None = None,
        at: str = "*",
        device: Device | None = None,
    ) -> "Sight":
        """Record every attention of the model on a text; see `TextModel.look`."""
        require_verb(self, "look")
        return self.text_model.on(device).look(text, target, at, to=to)

    def evaluate(
        self,
        split: EvalSplit = "test",
        *,
        beam_width: int | None = None,
        device: Device | None = None,
    ) -> "Evaluation":
        """Scores on held-out data, with the mistakes; see `regard.runs.evaluate_run`."""
        from regard.runs.evaluate import evaluate_run

        return evaluate_run(self, split, beam_width=beam_width, device=device)

    def export(self, folder: str | Path) -> "list[OnnxFile]":
        """Write ONNX files, the tokenizer and export.json; see `regard.runs.export_run`."""
        from regard.runs.export import export_run

        return export_run(self, folder)

    def quantize(
        self, folder: str | Path, *, score: bool = True, device: Device | None = None
    ) -> "QuantizationResult":
        """Write a copy of the run with int8 weights; see `regard.runs.quantize_run`."""
        from regard.runs.quantize import quantize_run

        return quantize_run(self, folder, score=score, device=device)


def can(run: Run, verb: str) -> bool:
    """Whether the model of a run is of the kind that a task verb needs."""
    return isinstance(run.model, TASK_MODELS[verb])


def require_verb(run: Run, verb: str) -> None:
    """Raise a ConfigError that lists the verbs of a run, unless `verb` is one of them.

    >>> require_verb(rg.load("morse"), "classify")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: run: needs a model that can classify, got a Recogniser; try ...
    """
    if verb not in run.verbs:
        kind, verbs = type(run.model).__name__, ", ".join(run.verbs) or "rg.look(model)"
        raise ConfigError(f"run: needs a model that can {verb}, got a {kind}; try {verbs}")


def model_on(model: nn.Module, device: Device | None) -> nn.Module:
    """The model itself, or a copy of it where `device` is another one: never moved in place.

    >>> model = torch.nn.Linear(1, 1)
    >>> model_on(model, None) is model, model_on(model, "cpu") is model
    (True, True)
    """
    if device is None:
        return model
    device, current = torch.device(device), next(model.parameters()).device
    if device.type == current.type and device.index in (None, current.index):
        return model
    return copy.deepcopy(model).to(device)


def default_device() -> torch.device:
    """CUDA where it is available, else the CPU.

    >>> default_device().type in ("cpu", "cuda")
    True
    """
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_run(folder: str | Path, *, device: Device = "cpu") -> Run:
    """Open the folder of a run: its final model, or that of the last valid checkpoint.

    >>> load_run("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be the folder of a run, got no recipe.json in it
    """
    folder = Path(folder)
    recipe, tokenizer = read_recipe(folder), load_tokenizer(folder)
    result = read_result(folder)
    if (folder / WEIGHTS_FILE).exists():
        model = models.load(folder).float()  # pretrained weights are stored in half precision
    else:
        checkpoint, reasons = load_last_valid(folder / CHECKPOINTS)
        if checkpoint is None:
            got = "; ".join(["none yet", *reasons])
            raise FileError(f"{folder}: needs weights, got {got}; try regard resume {folder}")
        config = recipe.data.resolve(recipe.model, tokenizer)
        check_config_against_tensors(config, checkpoint.model, folder)
        model = build_model(recipe, tokenizer)
        load_weights(model, checkpoint.model, str(folder))
    model, calibration = model.to(device).eval(), load_calibration(folder)
    return Run(folder, recipe, model, tokenizer, read_metrics(folder), result, calibration)


def read_recipe(folder: str | Path) -> Recipe:
    """The recipe of a run.

    >>> read_recipe("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be the folder of a run, got no recipe.json in it
    """
    file = Path(folder) / RECIPE_FILE
    if not file.is_file():
        raise FileError(f"{folder}: needs to be the folder of a run, got no {RECIPE_FILE} in it")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise FileError(f"{file}: needs version {VERSION}, got {content['version']}")
        return config_from_json(Recipe, content["recipe"], "recipe", recipe_config_types())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file}: needs a recipe, got a damaged one, {error}") from error


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
