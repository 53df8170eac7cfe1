"""What a recipe is: data that knows its task, a model and a loop, in one frozen config."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from regard.data import Batches, Tokenizer
from regard.train.config import TrainConfig

EvalSplit = Literal["valid", "test"]


@runtime_checkable
class DataModule(Protocol):
    """What the data of a recipe says of itself: its words, its batches, its loss and its scores.

    The tokenizer that it is given is the one that it made (or None, where it made none).

    >>> isinstance(rg.tasks.recipe("phrases").data, DataModule)
    True
    """

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        ...

    def tokenizer(self, seed: int) -> Tokenizer | None:
        """The vocabulary, learnt from the train part; None where there are no words."""
        ...

    def resolve(self, model: Any, tokenizer: Any) -> Any:
        """The model's config, with the sizes that only the data knows."""
        ...

    def batches(
        self, tokenizer: Any, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> Batches:
        """The train part, endless, in an order that the seed fixes."""
        ...

    def evaluator(self, tokenizer: Any, split: EvalSplit) -> Callable[[nn.Module], dict[str, Any]]:
        """What tells how good a model is on a part that was not trained on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole training: data, model and loop. What only the data knows is filled in later.

    >>> rg.tasks.recipe("phrases").train.schedule
    'cosine'
    """

    name: str
    data: Any  # a Task, with settings of its own
    model: Any  # the config of a model
    train: TrainConfig
