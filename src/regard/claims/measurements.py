"""What several experiments share: derivatives, slopes, counts, and small trainings."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import GeneratedBatches
from regard.train import Objective, TrainConfig, Trainer


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Derivative of f at x: the axes of the output, then those of the input.

    >>> jacobian(torch.square, torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    result = torch.autograd.functional.jacobian(f, x)
    assert isinstance(result, Tensor)
    return result


def slope(x: Iterable[Any], y: Iterable[Any]) -> float:
    """Slope of the least-squares line of y over x.

    >>> slope([1, 2, 3], [5, 7, 9])
    2.0
    """
    a, b = (torch.as_tensor([float(v) for v in values]).double() for values in (x, y))
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / (a @ a))


def log_slope(x: Iterable[Any], y: Iterable[Any]) -> float:
    """Power of x that y follows: the slope of log y over log x.

    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return slope(*([math.log(v) for v in values] for values in (x, y)))


def count_parameters(module: nn.Module) -> int:
    """Number of trainable numbers of a module; shared ones count once."""
    return sum(p.numel() for p in module.parameters())


def graph_depth(y: Tensor) -> int:
    """Operations on the longest path of the autograd graph that leads to y."""
    depths: dict[Any, int] = {}
    waiting: list[Any] = [y.grad_fn]
    while waiting:
        node = waiting[-1]
        parents = [p for p, _ in node.next_functions if p is not None]
        missing = [p for p in parents if p not in depths]
        if missing:
            waiting += missing
        else:
            depths[node] = 1 + max((depths[p] for p in parents), default=0)
            waiting.pop()
    return depths[y.grad_fn]


def outputs_of(module: nn.Module, run: Callable[[], object]) -> list[Any]:
    """The outputs of a module while a function runs, one per call."""
    outputs: list[Any] = []
    with module.register_forward_hook(lambda *args: outputs.append(args[-1])):
        run()
    return outputs


def to_tensor(matrix: Any) -> Tensor:
    """An exact matrix of a worked solution, in float64."""
    rows = [[float(x) for x in matrix.row(i)] for i in range(matrix.rows)]
    return torch.tensor(rows, dtype=torch.float64)


Batch = Mapping[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def train_model(
    build: Callable[[], Module],
    draw: Callable[[torch.Generator], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    *,
    steps: int,
    lr: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> Module:
    """Train a new model on generated batches, and return it in evaluation mode.

    Args:
        build: makes the model, after torch was seeded.
        draw: makes a batch from a generator that is seeded per step.
        loss: mean loss of a batch.
        steps: updates of AdamW.
        lr: peak learning rate.
        seed: of weights, batches and dropout.
        device: to train on.
        options: more of `TrainConfig`.

    >>> model = train_model(
    ...     lambda: nn.Linear(1, 1),
    ...     lambda rng: {"x": torch.rand(8, 1, generator=rng)},
    ...     lambda model, batch: (model(batch["x"]) - 2 * batch["x"]).square().mean(),
    ...     steps=300, lr=0.1, warmup=0)
    >>> bool((model(torch.ones(1, 1)) - 2).abs() < 0.01)
    True
    """

    def make(step: int) -> Batch:
        return draw(torch.Generator().manual_seed(seed * 1_000_003 + step))

    objective = Objective(
        size=lambda batch: torch.ones(()),
        loss_sum=lambda model, batch, *rest, **unused: loss(model, batch),
    )
    torch.manual_seed(seed)
    fixed: dict[str, Any] = {"steps": steps, "lr": lr, "seed": seed, "device": device}
    fixed |= {"warmup": min(100, steps // 10), "log_every": steps}
    config = TrainConfig(**fixed | options)
    trainer = Trainer(build(), objective, GeneratedBatches(cast(Any, make)), config)
    trainer.run()
    return cast(Module, trainer.model.eval())


def label_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the labels."""
    return F.cross_entropy(model(batch["inputs"]), batch["labels"])


def train_classifier(
    build: Callable[[], nn.Module], draw: Callable[[torch.Generator], Batch], **options: Any
) -> nn.Module:
    """`train_model` on batches of inputs and labels; the model comes back on the CPU."""
    return train_model(build, draw, label_loss, **options).cpu()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    """Share of inputs whose most likely class is their label."""
    return float((model(batch["inputs"]).argmax(-1) == batch["labels"]).double().mean())
