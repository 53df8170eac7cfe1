"""Training losses, summed over tokens or examples and normalised per update."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, check_choice
from regard.models import ctc_loss

Batch = Mapping[str, Tensor]
SECOND_VIEW = "_again"  # suffix of the tensors that the second pass of R-Drop reads


class Objective(NamedTuple):
    """A loss as two functions: the number of targets in a batch, and the sum of their losses.

    loss of an update = Σ_batches loss_sum / Σ_batches size, however it is split into batches

    >>> batch = {"target": torch.zeros(2, 5), "target_lengths": torch.tensor([5, 3])}
    >>> int(objective("translation").size(batch))  # the first token of each is given
    6
    """

    size: Callable[[Batch], Tensor]
    loss_sum: Callable[..., Tensor]  # of model, batch, label_smoothing = 0, rdrop = 0


class ModelOutputs(NamedTuple):
    """The logits of a batch and the weight of each position (None: 1 everywhere)."""

    logits: Tensor
    weights: Tensor | None = None


LossSum = Callable[[ModelOutputs, Batch, float], Tensor]  # the float is the label smoothing


def objective(name: str) -> Objective:
    """A registered loss: translation, next_token, ctc, class, or one of `register_objective`.

    >>> objective("clas")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: objective: needs one of class, ctc, ..., got 'clas'; try class
    """
    check_choice("objective", name, sorted(OBJECTIVES))
    return OBJECTIVES[name]


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
    mask: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """Label-smoothed cross-entropy, summed over unmasked targets.

    Σ_t - (1 - ε) log p(y_t) - ε / vocab Σ_y log p(y)

    Args:
        logits: unnormalised log-probabilities.
        targets: the correct classes.
        label_smoothing: ε.
        mask: True where a target counts; None is everywhere.

    >>> logits = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    >>> label_smoothed_cross_entropy(logits, torch.tensor([0, 1])).exp()  # 4/3 · 2
    tensor(2.6667)
    """
    if mask is not None:
        targets = targets.masked_fill(~mask, -100)
    return F.cross_entropy(
        logits.flatten(0, -2).float(), targets.flatten(), reduction="sum",
        label_smoothing=label_smoothing, ignore_index=-100,
    )  # fmt: skip


def symmetric_kl(
    first: Float[Tensor, "*batch vocab"],
    second: Float[Tensor, "*batch vocab"],
    weights: Bool[Tensor, "*batch"] | Float[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """Symmetric KL divergence of two predictions, a weighted sum over positions.

    Σ_t ½ KL(p_t ‖ q_t) + ½ KL(q_t ‖ p_t) = Σ_t ½ Σ_y (p_t(y) - q_t(y)) (log p_t(y) - log q_t(y))

    >>> p, q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.25, 0.75]]).log()
    >>> symmetric_kl(p, q)  # ½ · (½ ln 3 + ½ ln 3)
    tensor(0.5493)
    """
    p, q = (x.float().log_softmax(-1) for x in (first, second))
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2
    return divergence.sum() if weights is None else (divergence * weights).sum()


def classification_losses(
    logits: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, " batch"]:
    """Cross-entropy of each example; where the label is -1, to the uniform distribution.

    The label -1 marks an example of no class (outlier exposure, Hendrycks et al. 2019).
    """
    log_probs = logits.float().log_softmax(-1)
    to_label = -log_probs.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    to_uniform = -log_probs.mean(-1)
    smoothed = (1 - label_smoothing) * to_label + label_smoothing * to_uniform
    return torch.where(labels < 0, to_uniform, smoothed)


def _target_mask(tokens: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Which tokens are targets: all but the first, up to each row's length."""
    if lengths is None:
        return None
    return torch.arange(1, tokens.shape[1], device=tokens.device) < lengths[:, None]


def _translation(model: nn.Module, batch: Batch) -> ModelOutputs:
    target = batch["target"]
    logits = model(batch["source"], target[:, :-1], batch.get("source_lengths"))
    return ModelOutputs(logits, _target_mask(target, batch.get("target_lengths")))


def _next_token(model: nn.Module, batch: Batch) -> ModelOutputs:
    tokens, lengths = batch["tokens"], batch.get("tokens_lengths")
    shorter = None if lengths is None else lengths.clamp(max=tokens.shape[1] - 1)
    return ModelOutputs(model(tokens[:, :-1], shorter), _target_mask(tokens, lengths))


def _frames(model: nn.Module, batch: Batch) -> ModelOutputs:
    # "before" is the initial state of online CMVN
    options: dict[str, Any] = {"cmvn_state": batch["before"]} if "before" in batch else {}
    log_probs, lengths = model(batch["frames"], batch["frames_lengths"], **options)
    mask = torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None]
    # CTC is a mean over the labels of a sequence, and so is the divergence of its frames
    return ModelOutputs(log_probs, mask / batch["target_lengths"].clamp(min=1)[:, None])


def _class(model: nn.Module, batch: Batch) -> ModelOutputs:
    if "pixels" in batch:
        return ModelOutputs(model(batch["pixels"]))
    return ModelOutputs(model(batch["tokens"], batch.get("tokens_lengths")))


def _token_loss(name: str) -> LossSum:
    return lambda outputs, batch, label_smoothing: label_smoothed_cross_entropy(
        outputs.logits, batch[name][:, 1:], label_smoothing, outputs.weights
    )


def _ctc(outputs: ModelOutputs, batch: Batch, label_smoothing: float) -> Tensor:
    assert outputs.weights is not None
    lengths, target = outputs.weights.count_nonzero(1), batch["target"]
    log_probs = outputs.logits.float()
    loss = ctc_loss(log_probs, lengths, target, batch["target_lengths"]) * len(lengths)
    if not label_smoothing:
        return loss
    # no frame has a label of its own: each is drawn to the uniform distribution
    to_uniform = -(log_probs.mean(-1) * outputs.weights).sum()
    return (1 - label_smoothing) * loss + label_smoothing * to_uniform


def _class_loss(outputs: ModelOutputs, batch: Batch, label_smoothing: float) -> Tensor:
    losses = classification_losses(outputs.logits, batch["label"], label_smoothing)
    if "other" not in batch:
        return losses.sum()
    # CutMix: the class of the pasted rectangle counts by its area
    other = classification_losses(outputs.logits, batch["other"], label_smoothing)
    return (batch["share"] * losses + (1 - batch["share"]) * other).sum()


def _count_rows(name: str) -> Callable[[Batch], Tensor]:
    return lambda batch: torch.tensor(len(batch[name]))


def _count_targets(name: str) -> Callable[[Batch], Tensor]:
    def count(batch: Batch) -> Tensor:
        lengths = batch.get(f"{name}_lengths")
        if lengths is None:
            return torch.tensor(batch[name][:, 1:].numel())
        return (lengths - 1).clamp(min=0).sum()

    return count


def make_objective(
    size: Callable[[Batch], Tensor],
    forward: Callable[[nn.Module, Batch], ModelOutputs],
    loss: LossSum,
) -> Objective:
    """An objective of a forward pass and the loss of its outputs, with R-Drop over both.

    With `rdrop`, both passes run as one batch of twice the rows. The second reads the tensors
    named `…_again` where the batch has them, such as a second augmentation.

    Args:
        size: number of targets in a batch.
        forward: runs the model on a batch.
        loss: of the outputs, the batch and the label smoothing, summed over targets.

    >>> rows = lambda batch: torch.tensor(len(batch["x"]))
    >>> squares = make_objective(rows, lambda model, batch: ModelOutputs(model(batch["x"])),
    ...                          lambda outputs, batch, smoothing: outputs.logits.square().sum())
    >>> squares.loss_sum(nn.Identity(), {"x": torch.tensor([3.0, 4.0])})
    tensor(25.)
    """

    def loss_sum(
        model: nn.Module, batch: Batch, label_smoothing: float = 0.0, rdrop: float = 0.0
    ) -> Tensor:
        if not rdrop:
            return loss(forward(model, batch), batch, label_smoothing)
        twice = {
            name: torch.cat([x, batch.get(name + SECOND_VIEW, x)])
            for name, x in batch.items()
            if not name.endswith(SECOND_VIEW)
        }
        outputs = forward(model, twice)
        weights = None if outputs.weights is None else outputs.weights.chunk(2)[0]
        first, second = outputs.logits.chunk(2)
        divergence = symmetric_kl(first, second, weights)
        return loss(outputs, twice, label_smoothing) / 2 + rdrop * divergence

    return Objective(size, loss_sum)


OBJECTIVES = {
    "translation": make_objective(_count_targets("target"), _translation, _token_loss("target")),
    "next_token": make_objective(_count_targets("tokens"), _next_token, _token_loss("tokens")),
    "ctc": make_objective(_count_rows("target"), _frames, _ctc),
    "class": make_objective(_count_rows("label"), _class, _class_loss),
}


def register_objective(name: str, objective: Objective) -> None:
    """Make a loss available to `objective` and to the tasks.

    >>> register_objective("next_token", objective("next_token"))
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: name: needs an unused name, got 'next_token'
    """
    if name in OBJECTIVES:
        raise ConfigError(f"name: needs an unused name, got {name!r}")
    OBJECTIVES[name] = objective
