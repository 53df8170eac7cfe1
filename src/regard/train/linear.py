"""Multinomial logistic regression: the model that every other has to beat."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

ITERATIONS = 60  # of L-BFGS; on tf-idf features more change no score
PENALTIES = (1.0, 0.3, 0.1, 0.03)  # tried from the strongest, each from the weights of the last


class SparseRows:
    """A sparse matrix by rows, for products alone; torch's sparse layouts warn that they are beta.

    Args:
        columns: of the entries, row by row.
        starts: of each row within them.
        values: of the entries.
        width: how many columns there are.

    >>> x = SparseRows(torch.tensor([0, 2]), torch.tensor([0, 1]), torch.tensor([5.0, 7.0]), 3)
    >>> x @ torch.eye(3)
    tensor([[5., 0., 0.],
            [0., 0., 7.]])
    """

    def __init__(
        self,
        columns: Int[Tensor, " entry"],
        starts: Int[Tensor, " row"],
        values: Float[Tensor, " entry"],
        width: int,
    ):
        self.columns, self.starts, self.values = columns, starts, values
        self.shape, self.dtype, self.device = (len(starts), width), values.dtype, values.device

    def __matmul__(self, dense: Float[Tensor, "column n"]) -> Float[Tensor, "row n"]:
        return F.embedding_bag(
            self.columns, dense, self.starts, per_sample_weights=self.values, mode="sum"
        )

    @property
    def mT(self) -> "SparseRows":  # noqa: N802 - as of a tensor
        """The transpose."""
        counts = torch.diff(self.starts, append=self.starts.new_tensor([len(self.columns)]))
        rows = torch.repeat_interleave(counts)
        order = self.columns.argsort(stable=True)
        counts = self.columns.bincount(minlength=self.shape[1])
        return SparseRows(rows[order], counts.cumsum(0) - counts, self.values[order], self.shape[0])


Features = Float[Tensor, "example feature"] | SparseRows
ValidFeatures = Float[Tensor, "valid feature"] | SparseRows


class LinearModel(NamedTuple):
    """Weights and biases of a linear classifier.

    logits = x W + b

    >>> LinearModel(torch.tensor([[1.0, 0.0]]), torch.zeros(2)).logits(torch.tensor([[3.0]]))
    tensor([[3., 0.]])
    """

    weight: Float[Tensor, "feature class"]
    bias: Float[Tensor, " class"]

    def logits(self, x: Features) -> Float[Tensor, "example class"]:
        """The logits of each class."""
        return x @ self.weight + self.bias


@torch.no_grad()
def fit_linear(
    x: Features,
    labels: Int[Tensor, " example"],
    classes: int,
    penalty: float = 1.0,
    *,
    start: LinearModel | None = None,
) -> LinearModel:
    """The weights of logistic regression, by L-BFGS.

    minimise Σ_i -log softmax(x_i W + b)[label_i] + penalty / 2 · ‖W‖²

    Args:
        x: features, dense or sparse.
        labels: numbers of the classes.
        classes: how many there are.
        penalty: of the squared weights, against the sum over examples; C = 1 / penalty elsewhere.
        start: weights to begin with.

    >>> x, labels = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> fit_linear(x, labels, 2, penalty=0.01).logits(x).argmax(-1)
    tensor([0, 1])
    """
    transposed = x.mT if isinstance(x, SparseRows) else x.mT.contiguous()
    target = F.one_hot(labels, classes).to(x.dtype)
    zeros = partial(torch.zeros, dtype=x.dtype, device=x.device)  # x may be sparse
    start = start or LinearModel(zeros(x.shape[1], classes), zeros(classes))
    model = LinearModel(*(y.clone().requires_grad_() for y in start))

    def loss() -> Tensor:  # with its gradient, since sparse products have no quick one
        with torch.no_grad():
            log_probability = model.logits(x).log_softmax(-1)
            error = log_probability.exp() - target
            model.weight.grad = transposed @ error + penalty * model.weight
            model.bias.grad = error.sum(0)
            return penalty / 2 * model.weight.square().sum() - (log_probability * target).sum()

    optimizer = torch.optim.LBFGS(
        model, max_iter=ITERATIONS, history_size=6, line_search_fn="strong_wolfe",
        tolerance_grad=1e-3, tolerance_change=1e-6,
    )  # fmt: skip
    optimizer.step(loss)
    return LinearModel(*(y.detach() for y in model))


def fit_best_linear(
    train: tuple[Features, Int[Tensor, " example"]],
    valid: tuple[ValidFeatures, Int[Tensor, " valid"]],
    classes: int,
    penalties: Sequence[float] = PENALTIES,
) -> LinearModel:
    """Logistic regression with the penalty whose loss on the valid split is the lowest."""
    best, lowest, model = None, torch.inf, None
    for penalty in penalties:
        model = fit_linear(*train, classes, penalty, start=model)
        loss = F.cross_entropy(model.logits(valid[0]), valid[1]).item()
        if best is None or loss < lowest:
            best, lowest = model, loss
    assert best is not None
    return best
