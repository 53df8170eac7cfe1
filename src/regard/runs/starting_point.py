"""Where a training starts: the weights of a run, or those of a model of another task.

source = open_source("minilm")
recipe = adapt_recipe(recipe, source, tokenizer)             # its sizes, and settings for it
recipe = choose_adaptation(recipe, source, tokenizer, print) # by trial on the valid split
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import models
from regard.data import Tokenizer
from regard.errors import ConfigError
from regard.models.hub.folder import from_pretrained
from regard.runs.contents import RECIPE_FILE, build_model, read_recipe
from regard.runs.downloads import downloaded
from regard.runs.loading import find_run, is_hub_folder
from regard.runs.trials import TrialRunner, with_steps
from regard.tasks import Recipe
from regard.tasks.annotated_text import AnnotatedTextTask, fit_head
from regard.tasks.labels import LabelsTask
from regard.tasks.language.text import TextTask
from regard.tasks.translation.data import TranslationTask
from regard.train.weights import load_matching_weights

OUTPUT_FIELDS = (
    "classes",
    "pooling",
    "pooler",
    "ngrams",
    "phrase_table",
)  # of a config: they are the task's
HEADS = ("head.", "linear.")  # tensors of such an output
FITTED = ("ngrams.", "mix", "phrase_table.")  # that were fitted to the data of the training itself
EPOCHS, MIN_STEPS, BATCH_EXAMPLES = 4, 100, 32
SECONDS = 600  # of training that are planned at most, on this machine
EVAL_CHARS, VALID_WINDOWS, CHARS_PER_TOKEN = 100_000, 16, 4
ADAPTATIONS = {"all weights": {"lr": 1e-4}, "low rank": {"lr": 1e-3, "low_rank": 8}}
ENGLISH = frozenset("the of and to for with that are was from by on as be this".split())  # noqa: SIM905
ENGLISH_SHARE, SAMPLE_TEXTS = 0.08, 500  # of the words of so many texts
ENGLISH_GAIN = "TREC 0.948, without 0.894"
TRIAL_STEPS = (10, 60)  # of each, at least and at most; else a tenth of the steps


class Source(NamedTuple):
    """A model that a training starts from, and the folder it is from."""

    folder: Path
    model: nn.Module

    def gives_model(self, recipe: Recipe) -> bool:
        """Whether its sizes are taken: it was trained on no task, or its width is another."""
        config: Any = getattr(self.model, "config", None)
        if type(config) is not type(recipe.model):
            return False
        return not (self.folder / RECIPE_FILE).exists() or config.dim != recipe.model.dim

    def has_other_classes(self, recipe: Recipe) -> bool:
        """Whether its classes are not those of the recipe, so that its head means others."""
        if not (self.folder / RECIPE_FILE).exists():
            return isinstance(self.model, models.Classifier)
        tasks = recipe.data, read_recipe(self.folder).data
        names = [getattr(data, "class_names", None) for data in tasks]
        return names[0] != names[1]

    def copy_to(self, model: nn.Module, recipe: Recipe) -> str:
        """Copy the tensors that agree into a new model; returns what was copied, in a line."""
        is_other = self.has_other_classes(recipe)
        count = load_matching_weights(model, self.model, skip=FITTED + HEADS * is_other)
        why = ", the head for its other classes" if is_other else ""
        return f"{count} tensors from {self.folder}, the others are new{why}"

    def fit_head(self, model: nn.Module, recipe: Recipe, tokenizer: Tokenizer | None) -> bool:
        """Fit a new head to the outputs of the frozen encoder; returns whether there is one."""
        data: Any = recipe.data
        is_new = isinstance(data, AnnotatedTextTask) and self.has_other_classes(recipe)
        if is_new:
            fit_head(data, model, tokenizer)
        return is_new


def suggest_source(recipe: Recipe) -> str:
    """How to start from a model of English, for labels of English texts; "" for other data."""
    data = recipe.data
    if not isinstance(data, LabelsTask):
        return ""
    rows = data.load().examples["train"][:SAMPLE_TEXTS]
    words = " ".join(map(data.text, rows)).lower().split()
    if sum(map(ENGLISH.__contains__, words)) < ENGLISH_SHARE * len(words):
        return ""
    get = "" if downloaded("minilm") else "regard get minilm && "
    return f"{get}regard train … --from minilm  # English: {ENGLISH_GAIN}"


def open_source(name: str | Path) -> Source:
    """The model of a run, a pretrained or saved model, or a Hugging Face folder."""
    folder = find_run(name)
    load = from_pretrained if is_hub_folder(folder) else models.load
    return Source(folder, load(folder).float())


def adapt_recipe(recipe: Recipe, source: Source, tokenizer: Tokenizer | None) -> Recipe:
    """The recipe with the sizes of the source, and settings that suit weights that are trained."""
    assert tokenizer is not None
    config: Any = source.model.config
    output = {name: getattr(recipe.model, name) for name in OUTPUT_FIELDS if hasattr(config, name)}
    recipe = replace(recipe, model=replace(config, **output))
    data: Any = recipe.data
    if isinstance(data, AnnotatedTextTask):
        if config.positions == "learned":
            data = replace(data, max_tokens=min(data.max_tokens, config.max_positions))
        lengths = [len(row["tokens"]) for row in data.encoded(tokenizer, "train")]
        batch = max(*lengths, 1, BATCH_EXAMPLES * sum(lengths) // len(lengths))
        steps = EPOCHS * len(lengths) // BATCH_EXAMPLES
    elif isinstance(data, TextTask):
        data = replace(
            data,
            eval_chars=min(data.eval_chars or EVAL_CHARS, EVAL_CHARS),
            valid_windows=min(data.valid_windows or VALID_WINDOWS, VALID_WINDOWS),
        )
        batch = 2 * data.length
        steps = EPOCHS * data.size[0] // (batch * CHARS_PER_TOKEN)
    elif isinstance(data, TranslationTask):
        return recipe
    else:
        raise ConfigError(f"from: needs a task on labels, tags, pairs or text, got {data.name}")
    train = replace(
        recipe.train, batch_tokens=batch, weight_decay=0.01, label_smoothing=0.0, keep_last=1
    )
    return with_steps(replace(recipe, data=data, train=train), max(MIN_STEPS, steps))


def choose_adaptation(
    recipe: Recipe,
    source: Source,
    tokenizer: Tokenizer,
    given: Sequence[str],
    log: Callable[[str], None],
) -> Recipe:
    """The recipe with the adaptation of the best score on the valid split after a few updates.

    The steps become at most those of `SECONDS`. What is `given` is left as it is.
    """
    names = {name for name in ("lr", "low_rank", "freeze") if _is_given(name, given)}
    low, high = TRIAL_STEPS
    steps = max(low, min(recipe.train.steps // 10, high))
    trials = {"as given": dict[str, Any]()} if names else ADAPTATIONS
    best, chosen, runner = None, recipe, TrialRunner(recipe, tokenizer)
    for name, settings in trials.items():
        changed = replace(recipe, train=replace(recipe.train, **settings))
        trial = with_steps(changed, steps)
        torch.manual_seed(recipe.train.seed)
        model = build_model(trial, tokenizer)
        source.copy_to(model, trial)
        source.fit_head(model, trial, tokenizer)
        score, seconds = runner(trial, model)
        planned = max(MIN_STEPS, min(recipe.train.steps, int(SECONDS / seconds)))
        monitor, train = recipe.train.monitor, recipe.train
        log(f"tried {name}: {monitor} {score:.4f} after {steps} steps, {seconds:.2f} s each")
        if train.is_better(score, best):
            best = score
            chosen = changed if _is_given("steps", given) else with_steps(changed, planned)
    return chosen


def _is_given(name: str, given: Sequence[str]) -> bool:
    return any(x.partition("=")[0].strip().rpartition(".")[2] == name for x in given)
