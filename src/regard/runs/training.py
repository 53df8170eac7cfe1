"""Training by a recipe in a run folder: start and resume."""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard import models
from regard.data import Tokenizer
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.errors import ConfigError, FileError, RegardError
from regard.files import make_folder, write_text
from regard.runs.contents import (
    RECIPE_FILE,
    RECIPE_TOML,
    RESULT_FILE,
    VERSION,
    build_model,
    load_tokenizer,
    read_recipe,
)
from regard.runs.data_changes import DATA_FILE, check_data, stamp_data, write_stamps
from regard.runs.evaluate import evaluate_model
from regard.runs.lock import lock_folder
from regard.runs.report.page import report_run
from regard.runs.run import load_run
from regard.runs.settings import config_to_json, iter_settings, override_settings
from regard.tasks import Recipe
from regard.tasks.recipe_file import recipe_to_toml
from regard.train import (
    Gradable,
    Outcome,
    Ranks,
    Trainer,
    calibrate,
    objective,
    save_calibration,
)
from regard.train.checkpoint.store import remove_partial_checkpoints
from regard.train.evaluation import run_evaluation
from regard.train.loop import CHECKPOINTS
from regard.train.metrics.log import tensorboard_logger
from regard.train.prefetch import BatchSource
from regard.train.weights import load_matching_weights

TOKEN_CACHE = "cache"  # the encoded train split: reused by resume, removed when training ends
RESUMABLE = tuple(
    f"train.{name}"
    for name in (
        *("steps", "patience", "log_every", "evaluate_every", "save_every", "keep_last"),
        *("average_last", "device", "compile", "parallel"),
    )
)


def start_run(
    recipe: Recipe,
    folder: str | Path,
    *,
    show: bool = False,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
    recipe_text: str | None = None,
    init_from: str | Path | None = None,
    report: bool = False,
) -> Outcome:
    """Train by a recipe in a new folder, then evaluate on the test split.

    Args:
        recipe: data, model and training settings.
        folder: where to write recipe, tokenizer, checkpoints, metrics, weights and scores.
        show: print progress.
        ranks: of distributed training; every rank makes this call, with one shared folder.
        tensorboard: also write TensorBoard event files.
        recipe_text: the file of the recipe, kept as recipe.toml; None writes the recipe.
        init_from: a run to fine-tune: its tokenizer, and its weights where name and shape agree.
        report: also write report.html and the model card CARD.md; see `report_run`.

    >>> import tempfile
    >>> small = ["steps=2", "vocab_texts=99", "valid_size=2", "test_size=2", "dim=16", "device=cpu"]
    >>> recipe = rg.runs.override_settings(rg.tasks.recipe("phrases"), small)
    >>> start_run(recipe, Path(tempfile.mkdtemp()) / "run").reason
    'finished'
    """
    folder, ranks = Path(folder), ranks or Ranks()
    with _locked(folder, ranks):
        ranks.run_on_first(lambda: _write_recipe(recipe, folder, recipe_text, init_from))
        tokenizer = load_tokenizer(folder)
        try:
            recipe = read_recipe(folder)  # with what `Task.fit` found in the data
            trainer = _trainer(recipe, tokenizer, folder, show, ranks, tensorboard)
            if init_from is not None:
                skip = ("head.",) if _has_other_classes(recipe, Path(init_from)) else ()
                copied = load_matching_weights(trainer.model, models.load(init_from), skip=skip)
                if show and ranks.is_first:
                    why = ", the head for its other classes" if skip else ""
                    print(f"{folder}: {copied} tensors from {init_from}, the others are new{why}")
        except (RegardError, KeyboardInterrupt):
            if ranks.is_first:  # nothing began (data not found, for example): leave no run behind
                for name in (RECIPE_FILE, RECIPE_TOML, TOKENIZER_FILE, DATA_FILE):
                    (folder / name).unlink(missing_ok=True)
                shutil.rmtree(folder / TOKEN_CACHE, ignore_errors=True)
            raise
        return _train(trainer, recipe, tokenizer, folder, report)


def _has_other_classes(recipe: Recipe, source: Path) -> bool:
    """Whether the classes of a run are not those of the recipe, so that its head means others."""
    if not (source / RECIPE_FILE).exists():  # a model alone
        return False
    names = [getattr(data, "class_names", None) for data in (recipe.data, read_recipe(source).data)]
    return names[0] != names[1]


def resume_run(
    folder: str | Path,
    *,
    show: bool = False,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
    settings: Sequence[str] = (),
    report: bool = False,
    accept_data: bool = False,
) -> tuple[Outcome, list[str]]:
    """Resume a run from its last valid checkpoint.

    Returns the outcome, and one line for each newer checkpoint that is damaged.

    Args:
        folder: of the run.
        show: print progress.
        ranks: of distributed training; their number may differ from before.
        tensorboard: also write TensorBoard event files.
        settings: `name=value` of `RESUMABLE`, such as steps=5000; others cannot change any more.
        report: as in `start_run`.
        accept_data: go on although files of the data have changed since the run began.

    >>> resume_run("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be the folder of a run, got no recipe.json in it
    """
    folder, ranks = Path(folder), ranks or Ranks()
    recipe, tokenizer = read_recipe(folder), load_tokenizer(folder)
    recipe = _change_settings(recipe, settings)
    with _locked(folder, ranks):
        ranks.run_on_first(lambda: check_data(recipe.data, folder, accept=accept_data))
        ranks.run_on_first(lambda: remove_partial_checkpoints(folder / CHECKPOINTS))
        trainer = _trainer(recipe, tokenizer, folder, show, ranks, tensorboard)
        damaged = trainer.resume()
        if settings:
            ranks.run_on_first(lambda: _write_settings(recipe, folder))
        return _train(trainer, recipe, tokenizer, folder, report), damaged


def _change_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    changed = override_settings(recipe, settings)
    before, after = (dict(iter_settings(x)) for x in (recipe, changed))
    for name, value in after.items():
        if before[name] != value and name not in RESUMABLE:
            known = ", ".join(x.removeprefix("train.") for x in RESUMABLE)
            raise ConfigError(
                f"set: needs one of {known} for a run that has begun, got {name}={value}; "
                "try regard train … --from RUN"
            )
    return changed


@contextmanager
def _locked(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Create the folder if needed; the first rank holds its lock while all ranks train."""
    with ExitStack() as stack:

        def lock() -> None:
            if not folder.exists():
                stack.callback(_remove_if_empty, folder)
            make_folder(folder)
            try:
                stack.enter_context(lock_folder(folder))
            except OSError as error:
                raise FileError(
                    f"{folder}: cannot be written, {error.strerror or error}"
                ) from error

        ranks.run_on_first(lock)
        yield


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _write_recipe(
    recipe: Recipe, folder: Path, text: str | None, init_from: str | Path | None
) -> None:
    if (folder / RECIPE_FILE).exists():
        raise FileError(f"{folder}: needs to be without a run, got one; try regard resume {folder}")
    recipe = replace(recipe, data=recipe.data.fit(recipe.train.seed))
    tokenizer = None if init_from is None else load_tokenizer(Path(init_from))
    tokenizer = tokenizer or recipe.data.tokenizer(recipe.train.seed)
    if tokenizer is not None:
        tokenizer.save(folder)
    if stamps := stamp_data(recipe.data):
        write_stamps(stamps, folder)
    write_text(folder / RECIPE_TOML, recipe_to_toml(recipe) if text is None else text)
    _write_settings(recipe, folder)  # last: a folder with a recipe has all that resuming needs


def _write_settings(recipe: Recipe, folder: Path) -> None:
    content = {"version": VERSION, "recipe": config_to_json(recipe)}
    write_text(folder / RECIPE_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _trainer(
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    folder: Path,
    show: bool,
    ranks: Ranks,
    tensorboard: bool,
) -> Trainer:
    if show and ranks.is_first:
        for line in recipe.train.warnings():
            print(f"{folder}: warning: {line}")
    torch.manual_seed(recipe.train.seed)  # dropout; a resumed run takes the checkpoint's instead
    return Trainer(
        build_model(recipe, tokenizer),
        objective(recipe.data.objective),
        _batches(recipe, tokenizer, folder, show, ranks),
        recipe.train,
        folder=folder,
        evaluate=recipe.data.evaluator(tokenizer, "valid"),
        show=show,
        unit=recipe.data.unit,
        ranks=ranks,
        loggers=[tensorboard_logger(folder)] if tensorboard and ranks.is_first else [],
    )


def _batches(
    recipe: Recipe, tokenizer: Tokenizer | None, folder: Path, show: bool, ranks: Ranks
) -> BatchSource:
    made: list[BatchSource] = []

    def make() -> None:
        batches = recipe.data.cached_batches(
            tokenizer, recipe.train, folder / TOKEN_CACHE, show=show,
            rank=ranks.rank, world_size=ranks.world_size,
        )  # fmt: skip
        made.append(batches)

    ranks.run_on_first(make)  # writes the cache, which the other ranks open
    if not ranks.is_first:
        make()
    return made[0]


def _train(
    trainer: Trainer, recipe: Recipe, tokenizer: Tokenizer | None, folder: Path, report: bool
) -> Outcome:
    """Train; if not interrupted, write the weights, the test scores and the calibration."""
    started = time.monotonic()
    outcome = trainer.run()
    if outcome.reason == "interrupted":
        return outcome
    seconds = round(time.monotonic() - started, 1)

    def finish() -> dict[str, Any]:
        model, calibration = trainer.model, None
        models.save(model, folder)
        if isinstance(trainer.evaluate, Gradable):  # on the valid split, loaded for the training
            grade = partial(trainer.evaluate.grade, is_correct=recipe.data.is_correct)
            if graded := run_evaluation(model, grade):
                calibration = calibrate(graded)
                save_calibration(folder, calibration)
            elif trainer.show:
                print(f"{folder}: warning: no confidence, as the model answers nothing yet")
        evaluator = recipe.data.evaluator(tokenizer, "test")
        evaluation = None
        if report:
            is_correct = recipe.data.is_correct
            evaluation = evaluate_model(model, evaluator, "test", is_correct, calibration)
        scores = evaluation.scores if evaluation else run_evaluation(model, evaluator)
        result = {"step": outcome.step, "reason": outcome.reason, "seconds": seconds}
        result |= {"weights_step": outcome.weights_step, "valid": outcome.scores, "test": scores}
        write_text(folder / RESULT_FILE, json.dumps(result, indent=1) + "\n")
        shutil.rmtree(folder / TOKEN_CACHE, ignore_errors=True)  # only training reads it
        if evaluation is not None:
            run = load_run(folder, device=trainer.device)
            report_run(run, evaluation=evaluation, evaluator=evaluator)
        return scores

    return outcome._replace(scores=trainer.ranks.run_on_first(finish))
