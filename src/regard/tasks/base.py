"""Recipes and tasks: a complete training as one frozen config."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Unpack

from torch import nn

from regard.data import LoadReport, Split, Tokenizer
from regard.data.batches import Shard
from regard.errors import ConfigError
from regard.tasks.pipeline import Pipeline
from regard.tasks.verb import TaskOptions, Verb
from regard.train.config import TrainConfig
from regard.train.evaluation import run_evaluation
from regard.train.prefetch import BatchSource

EvalSplit = Literal["valid", "test"]
Evaluator = Callable[[nn.Module], dict[str, Any]]  # computes the scores of a model
BatchUnit = Literal["batch_tokens", "batch_size"]
T = TypeVar("T", bound="Task")
DEFAULT_BATCH: dict[BatchUnit, int] = {"batch_tokens": 4096, "batch_size": 64}


class DataContents(NamedTuple):
    """All examples of own files with their splits, what was skipped, and the files.

    An example is a named tuple whose first field is the input. The report is complete after the
    last example.
    """

    examples: Iterable[tuple[Split, Any]]
    report: LoadReport
    files: Sequence[Path]


class EncodedCache(NamedTuple):
    """Where the encoded train split is kept, None is a temporary folder; `show` prints progress."""

    folder: Path | None = None
    show: bool = False


class Baseline(NamedTuple):
    """A simple model of a task's data: fitted at once, applied and kept as any model of a run.

    Args:
        name: what it is.
        model: of a registered class, so that it is saved with its config.
        data: the task as its run has it, which may read inputs in another way.
        tokenizer: of the inputs.
    """

    name: str
    model: nn.Module
    data: "Task"
    tokenizer: Tokenizer | None = None


class Task(Verb, ABC):
    """A task with the settings of its data: tokenizer, batches, loss, evaluation and use.

    A subclass is a frozen, keyword-only dataclass of settings (the `[data]` of a recipe file),
    registered with `@regard.tasks.task("name")`. Methods that take a tokenizer get the one that
    `tokenizer` made.

    >>> isinstance(rg.tasks.recipe("phrases").data, Task)
    True
    """

    name: ClassVar[str] = ""  # in recipe files; set by `@task`
    objective: ClassVar[str]  # name of the loss, of `regard.train.objective`
    unit: ClassVar[str] = "tokens"  # what the loss is a mean over, for the speed of training
    batch_unit: ClassVar[BatchUnit] = "batch_tokens"  # what limits a batch
    pipeline_type: ClassVar[type[Pipeline]] = Pipeline  # which calls `apply`, unless it says other
    paths: ClassVar[tuple[str, ...]] = ()  # settings that are paths, relative to the recipe file

    def fit(self, seed: int) -> "Task":
        """The task completed with what only the data knows, such as the names of the classes.

        Called once, when a run starts; the run's recipe keeps the result, so that opening the run
        needs no data. Raises for data that cannot be trained on.
        """
        return self

    def data_warnings(self) -> list[str]:
        """What is odd about the data, such as skipped records; `regard train` prints it."""
        return []

    def tokenizer(self, seed: int) -> Tokenizer | None:
        """The tokenizer, trained on the train split; None where the data is not text."""
        return None

    @abstractmethod
    def resolve(self, model: Any, tokenizer: Any) -> Any:
        """The model's config, completed with sizes that depend on the data."""

    @abstractmethod
    def batches(self, tokenizer: Any, train: TrainConfig, **shard: Unpack[Shard]) -> BatchSource:
        """Endless batches of the train split, in an order fixed by the seed."""

    def cached_batches(
        self, tokenizer: Any, train: TrainConfig, cache: EncodedCache, **shard: Unpack[Shard]
    ) -> BatchSource:
        """`batches` of a run, whose encoded train split is to be found by a resume.

        The first rank makes its batches before the others.
        """
        return self.batches(tokenizer, train, **shard)

    @abstractmethod
    def evaluator(self, tokenizer: Any, split: EvalSplit) -> Evaluator:
        """The evaluation on a held-out split."""

    def with_share(self: T, share: float) -> T | None:
        """The task with a random share of its train examples; None where it has no such setting."""
        if "train_share" not in {field.name for field in fields(self)}:  # type: ignore[arg-type]
            return None
        return replace(self, train_share=share)  # type: ignore[type-var]

    def fit_baseline(self) -> Baseline | None:
        """A simple model of the same data, which `regard train --baseline-only` keeps; or None.

        `regard train` scores it first, and says at the end whether the training was worth it.
        """
        return None

    def baseline(self, split: EvalSplit) -> tuple[str, Any] | None:
        """The name of a simple model of the same data, and its answers to a split; or None.

        The answers are what `tally` of the evaluator takes: by default those of `fit_baseline`. A
        simple method that is no model, such as xz, is compared with here.
        """
        if (fitted := self.fit_baseline()) is None:
            return None
        evaluator: Any = fitted.data.evaluator(fitted.tokenizer, split)
        return fitted.name, run_evaluation(fitted.model, evaluator.predict)

    def contents(self) -> DataContents:
        """The examples of own files, for `regard data`; a task without files has none."""
        raise ConfigError(f"task: needs one with data files of its own, got {self.name}")

    def data_files(self) -> Sequence[Path]:
        """The files that are read; `regard resume` names those that have changed."""
        return self.contents().files

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "apply" not in cls.__dict__:
            return
        if "pipeline_type" not in cls.__dict__:
            cls.pipeline_type = Pipeline
        names = [*signature(cls.apply).parameters]
        if len(names) != 4:
            raise ConfigError(
                f"apply: needs (self, run, inputs, options), got ({', '.join(names)}); try "
                "class Options(TaskOptions)"
            )

    def pipeline(self, run: Any, options: TaskOptions) -> Pipeline:
        """The model of a run, ready to be applied to inputs."""
        return self.pipeline_type(run, options)

    def apply(self, run: Any, inputs: Sequence[Any], options: Any) -> Sequence[Any]:
        """What a trained run (its `model`, `tokenizer`, `data`) returns for inputs, one per input.

        `options` are the task's `Options`. A `RegardError` in place of an output says what is wrong
        with that input alone.
        """
        raise NotImplementedError

    def example(self, run: Any) -> tuple[str, dict[str, Any]]:
        """An input to show the use of a run with, and the options that it needs."""
        return self.reads.example, {}

    def format_output(self, output: Any) -> str:
        """One output as a line of text."""
        return str(output)

    def confidence(self, output: Any) -> float | None:
        """The probability that an output is correct, as the model has it; None without one."""
        return getattr(output, "confidence", None)

    def is_correct(self, answer: Any, reference: Any) -> bool:
        """Whether an answer counts as correct: where mistakes are listed and confidence is fitted.

        Equality, unless a task allows more, such as a few wrong characters of a transcript.
        """
        return answer == reference

    def prepare_model(self, model: Any, tokenizer: Any, train: TrainConfig) -> None:
        """Fit what a new model has to know of the data before training, such as feature scales."""
        return

    def batch_limit(self, train: TrainConfig) -> int:
        """The size of a batch in this task's unit; to set the other unit is an error."""
        limits = {"batch_tokens": train.batch_tokens, "batch_size": train.batch_size}
        limit = limits.pop(self.batch_unit)
        ((other, value),) = limits.items()
        if value is not None:
            raise ConfigError(
                f"{other}: needs to be unset for {type(self).__name__}, whose batches are limited "
                f"by {self.batch_unit}, got {value}; try {self.batch_unit}=…"
            )
        return DEFAULT_BATCH[self.batch_unit] if limit is None else limit


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete training: data, model and hyperparameters.

    The model's config is a template: `data.resolve` completes it, such as with the vocabulary size.

    >>> rg.tasks.recipe("phrases").train.schedule
    'cosine'
    """

    name: str
    data: Task
    model: Any  # the config of a model
    train: TrainConfig

    def __post_init__(self) -> None:
        self.data.batch_limit(self.train)
