"""Recipes and data modules: a complete training as one frozen config."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

from torch import nn

from regard.data import Tokenizer
from regard.data.batches import Shard
from regard.errors import ConfigError
from regard.train.config import TrainConfig
from regard.train.prefetch import BatchSource

EvalSplit = Literal["valid", "test"]
Evaluator = Callable[[nn.Module], dict[str, Any]]  # computes the scores of a model
BatchUnit = Literal["batch_tokens", "batch_size"]
DEFAULT_BATCH: dict[BatchUnit, int] = {"batch_tokens": 4096, "batch_size": 64}


class DataModule(ABC):
    """The data of a recipe and its task: tokenizer, batches, loss and evaluation.

    A subclass is a frozen, keyword-only dataclass of settings, registered with
    `regard.tasks.register`. Methods that take a tokenizer get the one that `tokenizer` made.

    >>> isinstance(rg.tasks.recipe("phrases").data, DataModule)
    True
    """

    objective: ClassVar[str]  # name of the loss, of `regard.train.objective`
    batch_unit: ClassVar[BatchUnit] = "batch_tokens"  # what limits a batch

    def tokenizer(self, seed: int) -> Tokenizer | None:
        """The tokenizer, trained on the train split; None where the data is not text."""
        return None

    @abstractmethod
    def resolve(self, model: Any, tokenizer: Any) -> Any:
        """The model's config, completed with sizes that only the data knows."""

    @abstractmethod
    def batches(self, tokenizer: Any, train: TrainConfig, **shard: Unpack[Shard]) -> BatchSource:
        """Endless batches of the train split, in an order fixed by the seed."""

    @abstractmethod
    def evaluator(self, tokenizer: Any, split: EvalSplit) -> Evaluator:
        """The evaluation on a held-out split."""

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
    data: DataModule
    model: Any  # the config of a model
    train: TrainConfig

    def __post_init__(self) -> None:
        self.data.batch_limit(self.train)
