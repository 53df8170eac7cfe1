"""Training by a recipe in a run folder: `fit` prepares, trains, and does what follows.

    outcome = rg.runs.fit(rg.tasks.recipe("phrases"), "runs/mine")          # a new run
    outcome = rg.runs.fit("runs/mine", settings=["steps=5000"])             # resumed, to go on
    outcome = rg.runs.fit(recipe, "runs/other", skip=["card", "report"])    # of POST_STEPS

`regard train`, `resume` and `demo` are calls of `fit`. One update is in train/updates.py, called by
the loop of train/loop.py, with a loss of train/losses.py.
"""

import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from regard.data import Tokenizer
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.errors import ConfigError, FileError, RegardError
from regard.files import make_folder, write_text
from regard.models.config import get_config
from regard.runs.baseline import BaselineScores
from regard.runs.contents import (
    BASELINE,
    RECIPE_FILE,
    RECIPE_TOML,
    build_model,
    load_tokenizer,
    new_run_folder,
    read_recipe,
    read_result,
    write_recipe,
)
from regard.runs.data_changes import DATA_FILE, check_data, stamp_data, write_stamps
from regard.runs.lock import lock_folder
from regard.runs.post_steps import (
    TOKEN_CACHE,
    FittedModel,
    Training,
    check_skip,
    run_baseline_step,
    run_post_steps,
)
from regard.runs.settings import iter_settings, override_settings
from regard.runs.starting_point import Source, adapt_recipe, choose_adaptation, open_source
from regard.tasks import Recipe
from regard.tasks.base import EncodedCache
from regard.tasks.recipe_file import recipe_to_toml
from regard.train import Outcome, Ranks, Trainer, objective
from regard.train.checkpoint import remove_partial_checkpoints
from regard.train.loop import CHECKPOINTS
from regard.train.metrics import tensorboard_logger
from regard.train.prefetch import BatchSource

RESUMABLE = tuple(
    f"train.{name}"
    for name in (
        *("steps", "patience", "log_every", "evaluate_every", "save_every", "keep_last"),
        *("average_last", "device", "compile", "parallel"),
    )
)


def fit(
    recipe: Recipe | str | Path,
    folder: str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    skip: Collection[str] = (),
    init_from: str | Path | None = None,
    accept_data: bool = False,
    baseline_only: bool = False,
    curve: bool = False,
    recipe_text: str | None = None,
    show: bool = False,
    ranks: Ranks | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Train by a recipe in a new folder, or resume a run; then calibrate, evaluate and report.

    A resumed run ends as if it had never stopped: bit for bit, on a CPU.

    Args:
        recipe: data, model and training settings; or the folder of a run, to resume it.
        folder: of a new run: recipe, tokenizer, checkpoints, metrics, weights, scores and report
            are written there; None is a new one in runs/.
        settings: `name=value` to change; of a resumed run those of `RESUMABLE`, such as steps=5000.
        skip: steps before and after: baseline, calibrate, evaluate, card, report.
        init_from: a run to fine-tune: its tokenizer, and its weights where name and shape agree.
        accept_data: resume although files of the data have changed since the run began.
        baseline_only: keep the baseline of the task as the run, instead of a training.
        curve: also fit the baseline to parts of the data: what twice as much may bring.
        recipe_text: the file of the recipe, kept as recipe.toml; None writes the recipe.
        show: print progress.
        ranks: of distributed training; every rank makes this call, with one shared folder. Their
            number may differ when a run is resumed.
        tensorboard: also write TensorBoard event files.

    >>> import tempfile
    >>> small = ["steps=2", "vocab_texts=99", "valid_size=2", "test_size=2", "dim=16", "device=cpu"]
    >>> folder, recipe = Path(tempfile.mkdtemp()) / "run", rg.tasks.recipe("phrases")
    >>> fit(recipe, folder, settings=small, skip=["report"]).reason
    'finished'
    >>> fit(folder, settings=["steps=3"], skip=["report"]).step
    3
    """
    check_skip(skip)
    how = _Options(ranks or Ranks(), show, tensorboard)
    if isinstance(recipe, Recipe):
        recipe = override_settings(recipe, settings)
        name = f"{recipe.name}-baseline" if baseline_only else recipe.name
        folder = Path(folder or how.ranks.run_on_first(lambda: str(new_run_folder("runs", name))))
        prepare = partial(_start, recipe, folder, how, init_from, recipe_text, settings)
        if baseline_only:
            if init_from is not None or how.ranks.world_size > 1:
                raise ConfigError("baseline_only: needs one process and no init_from, got another")
            prepare = partial(_fit_baseline, recipe, folder, how, recipe_text)
            skip = {*skip, "baseline"}
    elif folder is not None or init_from is not None or baseline_only:
        raise ConfigError(f"recipe: needs a Recipe for a new run, got {recipe!r}; try tasks.recipe")
    else:
        folder = Path(recipe)
        changed = _change_settings(read_recipe(folder), settings)
        prepare = partial(_resume, changed, folder, how, accept_data)
    if curve and "baseline" in skip:
        raise ConfigError("curve: needs the baseline, got it skipped; try regard data … --curve")
    with _locked(folder, how.ranks):
        training, damaged = prepare()
        how.ranks.run_on_first(run_baseline_step, training, skip, curve)
        started = time.monotonic()
        outcome = training.trainer.run()
        outcome = outcome._replace(folder=folder, damaged=damaged)
        if outcome.reason == "interrupted":
            return outcome
        seconds = training.seconds + time.monotonic() - started
        training.outcome, training.seconds = outcome, round(seconds, 1)
        scores = how.ranks.run_on_first(run_post_steps, training, skip)
    return outcome._replace(scores=scores or outcome.scores)


class _Options(NamedTuple):
    ranks: Ranks
    show: bool
    tensorboard: bool

    def print(self, line: str) -> None:
        if self.show and self.ranks.is_first:
            print(line)


def _start(
    recipe: Recipe,
    folder: Path,
    how: _Options,
    init_from: str | Path | None,
    recipe_text: str | None,
    settings: Sequence[str],
) -> tuple[Training, list[str]]:
    """Prepare data, tokenizer and model of a new run; it is written when nothing can fail."""
    source = None if init_from is None else open_source(init_from)
    for line in how.ranks.run_on_first(recipe.data.data_warnings):
        how.print(f"{folder}: warning: {line}")
    how.ranks.run_on_first(_write_recipe, recipe, folder, recipe_text, source)
    try:
        recipe = read_recipe(folder)  # with what `Task.fit` learned from the data
        if source is not None and source.gives_model(recipe):
            recipe = how.ranks.run_on_first(_adapt, recipe, source, folder, how, settings)
        how.print(f"{folder}: {recipe.name}, {recipe.train.steps} steps")
        training = _prepare(recipe, folder, how, source)
        assert isinstance(training.trainer, Trainer)
        if getattr(training.trainer.model, "ngrams", None):  # they are fitted, and predict
            training.trainer.evaluate_start()
    except (RegardError, KeyboardInterrupt):
        if how.ranks.is_first:  # nothing began (data not found, for example): leave no run behind
            for name in (RECIPE_FILE, RECIPE_TOML, TOKENIZER_FILE, DATA_FILE):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / TOKEN_CACHE, ignore_errors=True)
        raise
    return training, []


def _fit_baseline(
    recipe: Recipe, folder: Path, how: _Options, recipe_text: str | None
) -> tuple[Training, list[str]]:
    """Fit the baseline of a new run, which is written when it is known."""
    _check_new(folder)
    text, started = recipe_text or recipe_to_toml(recipe), time.monotonic()
    baseline = recipe.data.fit(recipe.train.seed).fit_baseline()
    if baseline is None:
        raise ConfigError(
            f"task: needs one with a baseline that can be applied, got {recipe.data.name}; try "
            "regard train without --baseline-only"
        )
    name, model, data, tokenizer = baseline
    recipe = replace(recipe, data=data, model=get_config(model))
    _write_run(recipe, folder, text, tokenizer)
    seconds = round(time.monotonic() - started, 1)
    how.print(f"{folder}: {name}, fitted in {seconds:.0f} s")
    fitted = FittedModel(model, data.evaluator(tokenizer, "valid"), how.show)
    scores = BaselineScores(name, seconds, {}, [])
    return Training(folder, recipe, tokenizer, fitted, seconds=seconds, baseline=scores), []


def _resume(
    recipe: Recipe, folder: Path, how: _Options, accept_data: bool
) -> tuple[Training, list[str]]:
    """Prepare a run at its last valid checkpoint; also one line per damaged newer checkpoint."""
    ranks = how.ranks
    if read_result(folder).get("reason") == BASELINE:
        raise ConfigError(
            f"run: needs one that is trained, got the baseline in {folder}; try regard train"
        )
    ranks.run_on_first(check_data, recipe.data, folder, accept=accept_data)
    ranks.run_on_first(remove_partial_checkpoints, folder / CHECKPOINTS)
    training = _prepare(recipe, folder, how)
    assert isinstance(training.trainer, Trainer)
    damaged = training.trainer.resume()
    for line in damaged:
        how.print(f"skipped: {line}")
    if recipe != read_recipe(folder):
        ranks.run_on_first(write_recipe, recipe, folder)
    return training, damaged


def _adapt(
    recipe: Recipe, source: Source, folder: Path, how: _Options, settings: Sequence[str]
) -> Recipe:
    """The recipe for a model of the sizes of its source; what is given by settings stays."""
    tokenizer = load_tokenizer(folder)
    recipe = override_settings(adapt_recipe(recipe, source, tokenizer), settings)
    if how.ranks.world_size == 1:
        assert tokenizer is not None
        label = partial("{}: {}".format, folder)
        recipe = choose_adaptation(
            recipe, source, tokenizer, settings, lambda line: how.print(label(line))
        )
        recipe = override_settings(recipe, settings)
    write_recipe(recipe, folder)
    return recipe


def _prepare(recipe: Recipe, folder: Path, how: _Options, source: Source | None = None) -> Training:
    """The training of a run, with model, loss and batches, at its first step."""
    ranks, tokenizer, train = how.ranks, load_tokenizer(folder), recipe.train
    for line in train.warnings():
        how.print(f"{folder}: warning: {line}")
    torch.manual_seed(train.seed)  # dropout; a resumed run takes the checkpoint's instead
    model = build_model(recipe, tokenizer)
    if source is not None:
        how.print(f"{folder}: {source.copy_to(model, recipe)}")
    is_fitted = source is not None and source.fit_head(model, recipe, tokenizer)
    trainer = Trainer(
        model,
        objective(recipe.data.objective),
        _batches(recipe, tokenizer, folder, how),
        train,
        folder=folder,
        evaluate=recipe.data.evaluator(tokenizer, "valid"),
        show=how.show,
        unit=recipe.data.unit,
        ranks=ranks,
        loggers=[tensorboard_logger(folder)] if how.tensorboard and ranks.is_first else [],
    )
    if is_fitted:
        trainer.evaluate_start()
    return Training(folder, recipe, tokenizer, trainer)


def _batches(
    recipe: Recipe, tokenizer: Tokenizer | None, folder: Path, how: _Options
) -> BatchSource:
    batches: list[BatchSource] = []

    def make() -> None:
        batches.append(
            recipe.data.cached_batches(
                tokenizer, recipe.train, EncodedCache(folder / TOKEN_CACHE, how.show),
                rank=how.ranks.rank, world_size=how.ranks.world_size,
            )
        )  # fmt: skip

    how.ranks.run_on_first(make)  # writes the cache, which the other ranks open
    if not how.ranks.is_first:
        make()
    return batches[0]


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


def _write_recipe(recipe: Recipe, folder: Path, text: str | None, source: Source | None) -> None:
    _check_new(folder)
    recipe = replace(recipe, data=recipe.data.fit(recipe.train.seed))
    tokenizer = None if source is None else load_tokenizer(source.folder)
    tokenizer = tokenizer or recipe.data.tokenizer(recipe.train.seed)
    _write_run(recipe, folder, recipe_to_toml(recipe) if text is None else text, tokenizer)


def _check_new(folder: Path) -> None:
    if (folder / RECIPE_FILE).exists():
        raise FileError(f"{folder}: needs to be without a run, got one; try regard resume {folder}")


def _write_run(recipe: Recipe, folder: Path, text: str, tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None:
        tokenizer.save(folder)
    if stamps := stamp_data(recipe.data):
        write_stamps(stamps, folder)
    write_text(folder / RECIPE_TOML, text)
    write_recipe(recipe, folder)  # last: a folder with a recipe has all that resuming needs
