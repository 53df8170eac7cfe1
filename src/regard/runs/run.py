"""A run is a folder: the recipe, the tokenizer, the weights, the metrics and the checkpoints."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regard import models
from regard.data import Tokenizer
from regard.data.text.tokenizer_file import TOKENIZER_FILE as WORDS
from regard.errors import ConfigError, FileError, RegardError
from regard.files import make_folder, parse_json, write_text
from regard.models.serialization import WEIGHTS_FILE as WEIGHTS
from regard.models.serialization import check_config_against_tensors
from regard.runs.lock import lock_folder
from regard.runs.settings import config_from_json, config_to_json
from regard.tasks.registry import Recipe, recipe_config_types
from regard.train.checkpoint.store import load_last_valid, remove_partial_checkpoints
from regard.train.distributed.ranks import Ranks
from regard.train.evaluation import run_evaluation
from regard.train.logger import Logger, tensorboard_logger
from regard.train.loop import CHECKPOINTS, Outcome, Trainer
from regard.train.losses import objective
from regard.train.metrics.calibration import (
    Calibration,
    Gradable,
    calibrate,
    load_calibration,
    save_calibration,
)
from regard.train.metrics.log import read_metrics
from regard.train.weights import load_weights

RECIPE_FILE, RESULT_FILE = "recipe.json", "result.json"
VERSION = 1  # of the folder's layout


class Run(NamedTuple):
    """A run, opened: what it was told, what it became, and what it scored.

    >>> Run(Path("runs/a"), None, None, None, [], {}).folder.name
    'a'
    """

    folder: Path
    recipe: Any
    model: Any
    tokenizer: Any
    metrics: list[dict[str, Any]]
    result: dict[str, Any]
    calibration: Calibration | None = None  # of the confidence in its answers


def start_run(
    recipe: Recipe,
    folder: str | Path,
    *,
    show: bool = False,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Train by a recipe in a new folder, score the result on unseen data, and leave all there.

    With `ranks`, all of them call it, with a folder that all of them see.

    >>> import tempfile
    >>> small = ["steps=2", "vocab_texts=99", "valid_size=2", "test_size=2", "max_new_tokens=5"]
    >>> small += ["dim=16", "device=cpu"]
    >>> recipe = rg.runs.override_settings(rg.tasks.recipe("phrases"), small)
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> start_run(recipe, folder).reason
    'finished'
    >>> sorted(path.name for path in folder.iterdir())[-3:]
    ['recipe.json', 'result.json', 'tokenizer.json']
    """
    folder, ranks = Path(folder), ranks or Ranks()
    with _held(folder, ranks):
        listeners = _listeners(folder, tensorboard and ranks.is_first)
        ranks.run_on_first(lambda: _prepare(recipe, folder))
        tokenizer = _words(folder)
        how: dict[str, Any] = {"show": show, "ranks": ranks, "listeners": listeners}
        try:
            trainer = _trainer(recipe, tokenizer, folder, **how)
        except RegardError:
            if ranks.is_first:
                _forget(folder)  # such as data that is not where the recipe says: nothing began
            raise
        return _finish(trainer, recipe, tokenizer, folder)


@contextmanager
def _held(folder: Path, ranks: Ranks) -> Iterator[None]:
    """The folder, made if need be and locked by the first rank while all of them train."""
    with ExitStack() as stack:

        def hold() -> None:
            new = not folder.exists()
            make_folder(folder)
            if new:  # what stays empty goes again
                stack.callback(_remove_if_empty, folder)
            try:
                stack.enter_context(lock_folder(folder))
            except OSError as error:
                raise FileError(
                    f"{folder}: cannot be written, {error.strerror or error}"
                ) from error

        ranks.run_on_first(hold)
        yield


def _forget(folder: Path) -> None:
    """Take away what `_prepare` left."""
    for name in (RECIPE_FILE, WORDS):
        (folder / name).unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _prepare(recipe: Recipe, folder: Path) -> None:
    if (folder / RECIPE_FILE).exists():
        raise FileError(f"{folder}: needs to be without a run, got one; try regard resume {folder}")
    tokenizer = recipe.data.tokenizer(recipe.train.seed)
    make_folder(folder)
    if tokenizer is not None:
        tokenizer.save(folder)
    # the recipe last: a folder that has one has all that a resumed run needs
    told = {"version": VERSION, "recipe": config_to_json(recipe)}
    write_text(folder / RECIPE_FILE, json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def resume_run(
    folder: str | Path,
    *,
    show: bool = False,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
    parallel: Literal["auto", "none", "ddp", "fsdp"] | None = None,
) -> tuple[Outcome, list[str]]:
    """Go on with a run from its last good checkpoint; what is wrong with newer ones comes back.

    `parallel` replaces the recipe's, such as none for a run of several ranks that goes on on one.

    >>> resume_run("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be the folder of a run, got no recipe.json in it
    """
    folder = Path(folder)
    recipe, tokenizer = read_recipe(folder), _words(folder)
    if parallel is not None:
        recipe = replace(recipe, train=replace(recipe.train, parallel=parallel))
    ranks = ranks or Ranks()
    with _held(folder, ranks):
        listeners = _listeners(folder, tensorboard and ranks.is_first)
        ranks.run_on_first(lambda: remove_partial_checkpoints(folder / CHECKPOINTS))
        trainer = _trainer(recipe, tokenizer, folder, show=show, ranks=ranks, listeners=listeners)
        wrong = trainer.resume()
        return _finish(trainer, recipe, tokenizer, folder), wrong


def load_run(folder: str | Path) -> Run:
    """Open a run: its model as it ended, or as its last good checkpoint has it.

    >>> load_run("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be the folder of a run, got no recipe.json in it
    """
    folder = Path(folder)
    recipe, tokenizer = read_recipe(folder), _words(folder)
    result = read_result(folder)
    if (folder / WEIGHTS).exists():
        model = models.load(folder).float()  # specimens are kept in half precision
    else:
        found, wrong = load_last_valid(folder / CHECKPOINTS)
        if found is None:
            got = "; ".join(["none yet", *wrong])
            raise FileError(f"{folder}: needs weights, got {got}; try regard resume {folder}")
        check_config_against_tensors(
            recipe.data.resolve(recipe.model, tokenizer), found.model, folder
        )
        model = build_model(recipe, tokenizer)
        load_weights(model, found.model, str(folder))
    calibration = load_calibration(folder)
    return Run(folder, recipe, model.eval(), tokenizer, read_metrics(folder), result, calibration)


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
        told = parse_json(file.read_text(encoding="utf-8"))
        if told["version"] != VERSION:
            raise FileError(f"{file}: needs version {VERSION}, got {told['version']}")
        return config_from_json(Recipe, told["recipe"], "recipe", recipe_config_types())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file}: needs a recipe, got a damaged one, {error}") from error


def read_result(folder: str | Path) -> dict[str, Any]:
    """What a run ended with; nothing if it has not ended."""
    file = Path(folder) / RESULT_FILE
    if not file.is_file():
        return {}
    try:
        result = parse_json(file.read_text(encoding="utf-8"))
        known = {"step": int, "reason": str, "seconds": int | float, "valid": dict, "test": dict}
        for name, kind in known.items():
            if not isinstance(result[name], kind):
                raise ValueError(f"{name} is {result[name]!r:.40}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileError(
            f"{file}: needs the result of a run, got a damaged file, {error}"
        ) from error
    return result


def build_model(recipe: Recipe, tokenizer: Tokenizer | None) -> nn.Module:
    """The model of a recipe, with the sizes of its data, drawn from the recipe's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        model = models.build(recipe.data.resolve(recipe.model, tokenizer))
        recipe.data.prepare_model(model, tokenizer, recipe.train)
        return model


def _words(folder: Path) -> Tokenizer | None:
    return Tokenizer.load(folder) if (folder / WORDS).exists() else None


def _trainer(
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    folder: Path,
    *,
    show: bool,
    ranks: Ranks,
    listeners: Sequence[Logger] = (),
) -> Trainer:
    torch.manual_seed(recipe.train.seed)  # dropout; a resumed run takes the checkpoint's instead
    return Trainer(
        build_model(recipe, tokenizer),
        objective(recipe.data.objective),
        recipe.data.batches(tokenizer, recipe.train, rank=ranks.rank, world_size=ranks.world_size),
        recipe.train,
        folder=folder,
        evaluate=recipe.data.evaluator(tokenizer, "valid"),
        show=show,
        ranks=ranks,
        loggers=listeners,
    )


def _listeners(folder: Path, tensorboard: bool) -> list[Logger]:
    return [tensorboard_logger(folder)] if tensorboard else []


def _finish(trainer: Trainer, recipe: Recipe, tokenizer: Tokenizer | None, folder: Path) -> Outcome:
    """Train, and if it came to its end, write the weights and score them on the test part."""
    began = time.monotonic()
    outcome = trainer.run()
    if outcome.reason == "interrupted":
        return outcome
    trained = round(time.monotonic() - began, 1)

    def end() -> dict[str, Any]:
        models.save(trainer.model, folder)
        scores = run_evaluation(trainer.model, recipe.data.evaluator(tokenizer, "test"))
        result = {"step": outcome.step, "reason": outcome.reason, "seconds": trained}
        result |= {"valid": outcome.scores, "test": scores}
        if isinstance(trainer.evaluate, Gradable):  # the valid split, made once for the training
            save_calibration(
                folder, calibrate(run_evaluation(trainer.model, trainer.evaluate.grade))
            )
        write_text(folder / RESULT_FILE, json.dumps(result, indent=1) + "\n")
        return scores

    return outcome._replace(scores=trainer.ranks.run_on_first(end))


def new_run_folder(parent: str | Path, name: str) -> Path:
    """A folder for one more run: the name itself, or with the first free number.

    >>> new_run_folder("nowhere", "phrases")
    PosixPath('nowhere/phrases')
    """
    parent, number = Path(parent), 1
    place = parent / name
    while place.exists():
        number += 1
        place = parent / f"{name}-{number}"
    if not name or "/" in name:
        raise ConfigError(f"name: needs one word, got {name!r}")
    return place
