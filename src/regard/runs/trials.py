"""Sizes and steps chosen by short trainings on the valid split, by successive halving.

tuned = rg.runs.tune(rg.tasks.recipe("task.toml"), minutes=10)
tuned.recipe, tuned.trials
"""

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
from regard.errors import ConfigError
from regard.runs.contents import build_model
from regard.runs.settings import iter_settings
from regard.tasks import Recipe
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

Say = Callable[[str], None]


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
        self.batches = self.data.cached_batches(tokenizer, recipe.train, cache)
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


def tune(recipe: Recipe, minutes: float = 10.0, *, say: Say | None = None) -> Tuned:
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
    search = _Search(variants, time.monotonic() + 60 * minutes, say or (lambda line: None))
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

    def __init__(self, variants: dict[str, Recipe], deadline: float, say: Say):
        self.variants, self.deadline, self.say = variants, deadline, say
        self.first = next(iter(variants))
        self.train = variants[self.first].train
        self.best, self.trials = self.first, list[Trial]()
        self.fixed = 0.0  # seconds of a trial beside its updates
        self.times: dict[str, float] = {}  # seconds per update, by variant

    def run(self, cache: Path) -> None:
        """Try all variants, the better half of them for longer, and the best one for longest."""
        recipe = self.variants[self.first]
        seed = recipe.train.seed
        recipe = replace(recipe, data=recipe.data.fit(seed))
        self.tokenizer = recipe.data.tokenizer(seed)
        self.runner, self.data = TrialRunner(recipe, self.tokenizer, cache), recipe.data
        self._probe()
        names, planned, before = self._affordable(), recipe.train.steps, 0
        if len(names) == 1:
            needed = self._cost(2) / 60
            self.say(
                f"minutes: needs about {max(0.1, needed):.1f} to compare anything on this machine, "
                "got fewer; the recipe is as proposed without trials"
            )
            return
        for rung in range(len(_halves(len(names))) - 1, -2, -1):
            steps = self._steps(names, planned * 2.0**-rung, max(1, rung + 1))
            if steps <= before:  # nothing new; the next share of the time is larger
                continue
            done = [x for name in names if (x := self._try(name, steps)) is not None]
            if not done:
                return
            self._rank(done)
            if len(done) < len(names):
                return
            names, before = [x.name for x in done[: -(-len(done) // 2)]], steps

    def _rank(self, trials: list[Trial]) -> None:
        """Sort trials of as many steps by their scores, and note the best."""
        sign = 1 if self.train.is_better(0.0, 1.0) else -1
        trials.sort(key=lambda x: (x.score != x.score, sign * x.score))  # NaN is the last
        self.best = trials[0].name

    def _probe(self) -> None:
        """Measure the time of a trial and of its updates."""
        started = time.monotonic()
        recipe = with_steps(self.variants[self.first], PROBE_STEPS)
        _, self.times[self.first] = self.runner(recipe, self._build(recipe))
        self.fixed = time.monotonic() - started - PROBE_STEPS * self.times[self.first]

    def _affordable(self) -> list[str]:
        """As many variants as there is time to halve; the first alone where it is too little."""
        names, left = list(self.variants), self.deadline - time.monotonic()
        while len(names) > 1 and self._cost(len(names)) > left:
            names.pop()
        return names

    def _cost(self, count: int) -> float:
        """Seconds to halve so many variants, from the fewest updates on."""
        updates = self.times[self.first] * MIN_STEPS
        return sum(n * (self.fixed + updates * 2**rung) for rung, n in enumerate(_halves(count)))

    def _steps(self, names: list[str], planned: float, rungs: int) -> int:
        """The updates that the share of a rung in the time is enough for."""
        each = (self.deadline - time.monotonic()) / rungs / len(names) - self.fixed
        time_per_update = sum(map(self._time, names)) / len(names)
        return max(MIN_STEPS, min(round(planned), int(each / time_per_update)))

    def _time(self, name: str) -> float:
        return self.times.get(name, self.times[self.first])

    def _estimate(self, name: str, steps: int) -> float:
        return self.fixed + steps * self._time(name)

    def _try(self, name: str, steps: int) -> Trial | None:
        """One trial; None where the time is not enough for it."""
        started = time.monotonic()
        if self._estimate(name, steps) > self.deadline - started:
            return None
        recipe = with_steps(self.variants[name], steps)
        score, seconds = self.runner(recipe, self._build(recipe))
        self.trials.append(Trial(name, steps, score, time.monotonic() - started))
        # of the time of the machine, which other programs may share
        self.times[name] = max(seconds, (self.trials[-1].seconds - self.fixed) / steps)
        left = max(0, round(self.deadline - time.monotonic()))
        monitor = recipe.train.monitor
        self.say(
            f"tried {name}: {monitor} {score:.4f} after {steps:,} steps; "
            f"{left // 60}:{left % 60:02} left"
        )
        return self.trials[-1]

    def _build(self, recipe: Recipe) -> nn.Module:
        torch.manual_seed(recipe.train.seed)  # of dropout
        return build_model(replace(recipe, data=self.data), self.tokenizer)

    def choose_steps(self) -> int:
        """The updates of the best trial of the best variant; those planned if it was not tried."""
        planned = self.train.steps
        known = [x for x in self.trials if x.name == self.best]
        if not known or known[-1].steps < planned:
            return planned
        chosen = known[0]
        for trial in known[1:]:
            if self.train.is_better(trial.score, chosen.score):
                chosen = trial
        return chosen.steps


def _halves(count: int) -> list[int]:
    """How many variants there are in each rung, down to one."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def tune_proposal(proposal: Proposal, minutes: float, say: Say | None = None) -> Proposal:
    """A proposed recipe as `tune` chooses it; what was tried becomes its notes.

    Args:
        proposal: of `regard new`.
        minutes: of all trials together.
        say: called with a line of progress per trial.
    """
    tuned = tune(proposal.recipe, minutes, say=say)
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
