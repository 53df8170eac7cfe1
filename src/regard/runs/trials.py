"""Sizes and steps chosen by short trainings on the valid split, by successive halving.

tuned = rg.runs.tune(rg.tasks.recipe("task.toml"), minutes=10)
tuned.recipe, tuned.trials
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.data import Tokenizer
from regard.errors import ConfigError, TrainError
from regard.runs.contents import build_model
from regard.runs.settings import iter_settings
from regard.tasks import Recipe
from regard.tasks.base import EncodedCache
from regard.tasks.proposals.proposal import Proposal
from regard.train import Trainer, objective
from regard.train.distributed import select_device
from regard.train.evaluation import run_evaluation

MIN_STEPS = 20  # of a trial
PROBE_STEPS = 3  # that its time is estimated from
LEARNING_RATES = {"lower lr": 0.5, "higher lr": 2.0}
WIDTHS = {"narrower": 0.5, "wider": 1.5}
WIDTH_FIELDS, WIDTH_UNIT = ("dim", "ffn_dim", "width", "hidden"), 8
DEPTH_FIELDS = ("layers", "decoder_layers", "blocks")
MORE_DROPOUT = 0.2

Log = Callable[[str], None]


class Trial(NamedTuple):
    """A short training: which variant of the recipe, and its score on the valid split."""

    name: str
    steps: int
    score: float
    seconds: float


class Tuned(NamedTuple):
    """The recipe that trials chose, its name among the variants, and all trials in their order.

    >>> recipe = rg.tasks.recipe("glyphs")
    >>> trial = Trial("as proposed", 9, 0.5, 1.0)
    >>> Tuned(recipe, trial.name, [trial], {trial.name: recipe}).lines()
    ['as proposed: accuracy 0.5000 after 9 steps']
    """

    recipe: Recipe
    name: str
    trials: list[Trial]
    variants: dict[str, Recipe]

    def lines(self) -> list[str]:
        """What was tried with its scores, a line per variant."""
        monitor, lines = self.recipe.train.monitor, []
        for name in dict.fromkeys(trial.name for trial in self.trials):
            known = [x for x in self.trials if x.name == name]
            scores = ", ".join(f"{x.score:.4f} after {x.steps:,} steps" for x in known)
            changes = differences(self.variants["as proposed"], self.variants[name])
            lines.append(f"{name}{f' ({changes})' * bool(changes)}: {monitor} {scores}")
        return lines


class TrialRunner:
    """Trains variants of a recipe for a few updates; all read the same batches and examples.

    Args:
        recipe: whose data is used.
        tokenizer: of the data.
        cache: folder for the encoded train split; None is a temporary one.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer | None, cache: Path | None = None):
        self.data, self.tokenizer = recipe.data, tokenizer
        self.batches = self.data.cached_batches(tokenizer, recipe.train, EncodedCache(cache))
        self.start = deepcopy(self.batches.state())
        self.evaluator: Any = self.data.evaluator(tokenizer, "valid")

    def __call__(self, recipe: Recipe, model: nn.Module) -> tuple[float, float]:
        """The score on the valid split after a training without a folder; seconds per update."""
        train = recipe.train
        self.batches.restore(deepcopy(self.start))
        often = dict.fromkeys(("log_every", "evaluate_every", "save_every"), train.steps + 1)
        loss = objective(self.data.objective)
        trainer = Trainer(model, loss, self.batches, replace(train, **often))
        started = clock(recipe)
        if trainer.run().signal is not None:
            raise KeyboardInterrupt
        seconds = (clock(recipe) - started) / train.steps
        evaluate = lambda model: self.evaluator(model)[train.monitor]  # noqa: E731
        if train.monitor == "loss":  # without the answers, whose search takes longer
            evaluate = getattr(self.evaluator, "loss", evaluate)
        return float(run_evaluation(trainer.model, evaluate)), seconds


def clock(recipe: Recipe) -> float:
    """Seconds: on a CPU of the threads, which other programs do not slow down."""
    if select_device(recipe.train).type == "cpu":
        return time.process_time() / torch.get_num_threads()
    return time.monotonic()


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with so many updates, a tenth of them warmup, evaluated five times."""
    every = max(1, steps // 5)
    timing = {"warmup": steps // 10, "evaluate_every": every, "save_every": every}
    return replace(recipe, train=replace(recipe.train, steps=steps, **timing))


def tune(recipe: Recipe, minutes: float = 10.0, *, log: Log | None = None) -> Tuned:
    """The recipe with the sizes, learning rate and steps that score best on the valid split.

    By successive halving (Jamieson and Talwalkar 2016): all variants are trained for a few updates,
    the better half for twice as many, and so on up to the steps of the recipe, then twice as many.
    The test split is not read. Ctrl-C ends it with what is known so far.

    Args:
        recipe: that the variants are made of.
        minutes: of all trials together. Where they suffice for all, the result depends on the seed
            alone; else also on the speed of the machine.
        say: called with a line of progress per trial.

    >>> tune(rg.tasks.recipe("glyphs"), minutes=0)
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: minutes: needs more than 0, got 0
    """
    if not minutes > 0:
        raise ConfigError(f"minutes: needs more than 0, got {minutes:g}")
    variants = make_variants(recipe)
    search = _Search(variants, time.monotonic() + 60 * minutes, log or (lambda line: None))
    with TemporaryDirectory() as cache, suppress(KeyboardInterrupt):
        search.run(Path(cache))
    best = variants[search.best]
    steps = search.choose_steps()
    if steps != best.train.steps:
        best = with_steps(best, steps)
    return Tuned(best, search.best, search.trials, variants)


def make_variants(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe as it is, and with another width, learning rate, depth and dropout, by name."""
    model, train = recipe.model, recipe.train
    variants = {"as proposed": recipe}

    def add(name: str, **changes: Any) -> None:
        if changes:
            with suppress(ConfigError):  # sizes that this model cannot have
                variants[name] = replace(recipe, model=replace(model, **changes))

    for name, factor in WIDTHS.items():
        add(name, **_widths(model, factor))
    for name, factor in LEARNING_RATES.items():
        variants[name] = replace(recipe, train=replace(train, lr=factor * train.lr))
    names = {field.name for field in fields(model)}
    add("deeper", **{x: getattr(model, x) + 1 for x in DEPTH_FIELDS if x in names})
    if "dropout" in names and model.dropout < MORE_DROPOUT:
        add("more dropout", dropout=model.dropout + MORE_DROPOUT)
    elif "dropout" in names:
        add("less dropout", dropout=model.dropout / 2)
    return variants


def _widths(model: Any, factor: float) -> dict[str, int]:
    """The widths of a config times a factor; heads keep their width, so that there are others."""
    names = {field.name for field in fields(model)}
    known = {x: getattr(model, x) for x in WIDTH_FIELDS if x in names and getattr(model, x)}
    unit = model.dim // model.heads if "heads" in names else WIDTH_UNIT
    sizes = {x: max(1, round(factor * value / unit)) * unit for x, value in known.items()}
    if "heads" in names and model.head_dim is None:
        sizes["heads"] = sizes["dim"] // unit
    return sizes


def differences(before: Recipe, after: Recipe) -> str:
    """The settings in which two recipes differ.

    >>> recipe = rg.tasks.recipe("glyphs")
    >>> differences(recipe, rg.runs.override_settings(recipe, ["lr=0.5"]))
    'train.lr=0.5'
    """
    known = dict(iter_settings(before))
    changed = ((name, value) for name, value in iter_settings(after) if known[name] != value)
    return ", ".join(f"{name}={value:g}" for name, value in changed)


class _Search:
    """Successive halving of variants until a deadline."""

    def __init__(self, variants: dict[str, Recipe], deadline: float, log: Log):
        self.variants, self.deadline, self.log = variants, deadline, log
        self.best, self.trials = next(iter(variants)), list[Trial]()
        self.train = variants[self.best].train
        self.fixed = 0.0  # seconds of a trial beside its updates
        self.times: dict[str, float] = {}  # seconds per update, by variant

    def run(self, cache: Path) -> None:
        """Try all variants, the better half of them for twice as many updates, and so on."""
        recipe = self.variants[self.best]
        recipe = replace(recipe, data=recipe.data.fit(recipe.train.seed))
        self.data, self.tokenizer = recipe.data, recipe.data.tokenizer(recipe.train.seed)
        self.runner = TrialRunner(recipe, self.tokenizer, cache)
        names, steps = self._first_rung()
        while names and steps <= 2 * self.train.steps:
            done = [x for name in names if (x := self._try(name, steps)) is not None]
            sign = 1 if self.train.is_better(0.0, 1.0) else -1
            done.sort(key=lambda x: (math.isnan(x.score), sign * x.score))
            self.best = done[0].name if done else self.best
            if len(done) < len(names):
                return
            names, steps = [x.name for x in done[: -(-len(done) // 2)]], 2 * steps

    def _first_rung(self) -> tuple[list[str], int]:
        """The variants and updates to begin with: as many as all rungs have time for.

        Each rung takes about as long, with half of the variants and twice the updates; the last but
        one has the updates of the recipe.
        """
        names, left = list(self.variants), self.deadline - time.monotonic()
        rungs, steps = 1 + len(names).bit_length(), self.train.steps
        started = time.monotonic()
        probe = with_steps(self.variants[self.best], PROBE_STEPS)
        _, self.times[self.best] = self.runner(probe, self._build(probe))
        self.fixed = time.monotonic() - started - PROBE_STEPS * self.times[self.best]
        steps >>= rungs - 2
        while steps > MIN_STEPS and rungs * len(names) * self._estimate(self.best, steps) > left:
            steps //= 2
        steps = max(MIN_STEPS, steps)
        while len(names) > 1 and len(names) * self._estimate(self.best, steps) > left / 2:
            names.pop()
        if len(names) > 1:
            return names, steps
        needed = 4 * self._estimate(self.best, steps) / 60
        self.log(
            f"minutes: needs about {max(0.1, needed):.1f} to compare anything on this machine, "
            "got fewer; the recipe is as proposed without trials"
        )
        return [], steps

    def _estimate(self, name: str, steps: int) -> float:
        return self.fixed + steps * self.times.get(name, self.times[next(iter(self.times))])

    def _try(self, name: str, steps: int) -> Trial | None:
        """One trial; None where the time is not enough for it."""
        started = time.monotonic()
        if self._estimate(name, steps) > self.deadline - started:
            return None
        recipe = with_steps(self.variants[name], steps)
        try:
            score, seconds = self.runner(recipe, self._build(recipe))
        except TrainError:  # a loss that is not finite: the last of all
            score, seconds = math.nan, 0.0
        self.trials.append(Trial(name, steps, score, time.monotonic() - started))
        # of the time of the machine, which other programs may share
        self.times[name] = max(seconds, (self.trials[-1].seconds - self.fixed) / steps)
        left = max(0, round(self.deadline - time.monotonic()))
        self.log(
            f"tried {name}: {self.train.monitor} {score:.4f} after {steps:,} steps; "
            f"{left // 60}:{left % 60:02} left"
        )
        return self.trials[-1]

    def _build(self, recipe: Recipe) -> nn.Module:
        torch.manual_seed(recipe.train.seed)  # of dropout
        return build_model(replace(recipe, data=self.data), self.tokenizer)

    def choose_steps(self) -> int:
        """The updates of the best trial of the best variant; those planned if it was not tried."""
        known = [x for x in self.trials if x.name == self.best]
        if not known or known[-1].steps < 0.9 * self.train.steps:
            return self.train.steps
        chosen = known[0]
        for trial in known[1:]:
            if self.train.is_better(trial.score, chosen.score):
                chosen = trial
        return chosen.steps


def tune_proposal(proposal: Proposal, minutes: float, log: Log | None = None) -> Proposal:
    """A proposed recipe as `tune` chooses it; what was tried becomes its notes.

    Args:
        proposal: of `regard new`.
        minutes: of all trials together.
        say: called with a line of progress per trial.
    """
    tuned = tune(proposal.recipe, minutes, log=log)
    if not tuned.trials:
        return proposal
    known = dict(iter_settings(proposal.recipe))
    after = dict(iter_settings(tuned.recipe))
    changed = [name for name, value in after.items() if known[name] != value]
    comments = {x: y for x, y in proposal.comments.items() if x not in changed}
    if any(name.startswith("model.") for name in changed):
        comments.pop("model.layers", None)  # the reason of the size that was proposed
    shown = [x for x in changed if x.startswith("model.") or x in ("train.lr", "train.steps")]
    comments |= dict.fromkeys(shown, "by trial")
    valid, seed = proposal.report.sizes["valid"], proposal.recipe.train.seed
    notes = [
        f"Tried in {minutes:g} min at most, by successive halving on the valid split of {valid:,} "
        f"(seed {seed}):",
        *(f"  {line}" for line in tuned.lines()),
        f"Chosen: {tuned.name}, {tuned.recipe.train.steps:,} steps",
    ]
    return replace(proposal, recipe=tuned.recipe, comments=comments, notes=tuple(notes))
