"""What is made small: sums over tokens, to be divided by how many there are in the whole update."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models import ctc_loss

Batch = Mapping[str, Tensor]
SECOND_VIEW = "_again"  # after the name of what the second of two passes reads
PHONE_LOSS_WEIGHT = 0.5  # how much the sounds of words count beside the words


class Objective(NamedTuple):
    """A loss by its two parts: how many things a batch is scored on, and their losses summed.

    loss of an update = Σ_batches total / Σ_batches size, the same however it is cut into batches

    >>> batch = {"target": torch.zeros(2, 5), "target_lengths": torch.tensor([5, 3])}
    >>> int(objective("translation").size(batch))  # the first token of each is given
    6
    """

    size: Callable[[Batch], Tensor]
    loss_sum: Callable[..., Tensor]  # of a model, a batch, smoothing and agree


class ModelOutputs(NamedTuple):
    """What a model says of a batch, and how much each place of it counts (None: all the same).

    >>> ModelOutputs(torch.zeros(2, 3)).counts is None
    True
    """

    logits: Tensor
    weights: Tensor | None = None
    phones: Tensor | None = None  # of a recogniser: what its second head says


def objective(name: str) -> Objective:
    """A loss by its name: translation, next_token, ctc or class.

    >>> objective("clas")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: objective: needs translation, next_token, ctc or class, got 'clas'
    """
    if name not in OBJECTIVES:
        raise ConfigError(f"objective: needs translation, next_token, ctc or class, got {name!r}")
    return OBJECTIVES[name]


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
    mask: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """How surprising the targets are, summed over those that are live; some mass goes to all words.

    Σ_t - (1 - ε) log p(y_t) - ε / vocab Σ_y log p(y)

    >>> logits = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    >>> label_smoothed_cross_entropy(logits, torch.tensor([0, 1])).exp()  # 4/3 · 2
    tensor(2.6667)
    >>> label_smoothed_cross_entropy(logits, torch.tensor([0, 1]), mask=torch.tensor([False, True])).exp()
    tensor(2.)
    """
    if mask is not None:
        targets = targets.masked_fill(~mask, -100)
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        reduction="sum",
        label_smoothing=label_smoothing,
        ignore_index=-100,
    )


def symmetric_kl(
    first: Float[Tensor, "*batch vocab"],
    second: Float[Tensor, "*batch vocab"],
    weights: Bool[Tensor, "*batch"] | Float[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """How far two predictions of the same are apart, summed over those that count.

    Σ_t ½ KL(p_t ‖ q_t) + ½ KL(q_t ‖ p_t) = Σ_t ½ Σ_y (p_t(y) - q_t(y)) (log p_t(y) - log q_t(y))

    >>> p, q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.25, 0.75]]).log()
    >>> symmetric_kl(p, q)  # ½ · (½ ln 3 + ½ ln 3)
    tensor(0.5493)
    """
    p, q = (x.float().log_softmax(-1) for x in (first, second))
    apart = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2
    return apart.sum() if weights is None else (apart * weights).sum()


def _live(tokens: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Which tokens but the first are real: those are the ones to be told."""
    if lengths is None:
        return None
    return torch.arange(1, tokens.shape[1], device=tokens.device) < lengths[:, None]


def _told(tokens: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.tensor(tokens[:, 1:].numel())
    return (lengths - 1).clamp(min=0).sum()


def _translation(model: nn.Module, batch: Batch) -> ModelOutputs:
    target = batch["target"]
    logits = model(batch["source"], target[:, :-1], batch.get("source_lengths"))
    return ModelOutputs(logits, _live(target, batch.get("target_lengths")))


def _next_token(model: nn.Module, batch: Batch) -> ModelOutputs:
    tokens, lengths = batch["tokens"], batch.get("tokens_lengths")
    shorter = None if lengths is None else lengths.clamp(max=tokens.shape[1] - 1)
    return ModelOutputs(model(tokens[:, :-1], shorter), _live(tokens, lengths))


def _told_wrong(name: str) -> Callable[[ModelOutputs, Batch, float], Tensor]:
    def loss(answers: ModelOutputs, batch: Batch, smoothing: float) -> Tensor:
        return label_smoothed_cross_entropy(
            answers.logits, batch[name][:, 1:], smoothing, answers.weights
        )

    return loss


def _heard(model: nn.Module, batch: Batch) -> ModelOutputs:
    more: dict[str, Any] = {"phones": True} if "phones" in batch else {}
    if "before" in batch:  # where a running normalisation starts from
        more["before"] = batch["before"]
    log_probs, lengths, *phones = model(batch["frames"], batch["frames_lengths"], **more)
    frames = torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None]
    # the loss of a sequence is a mean over its labels, and so is what its frames disagree by
    return ModelOutputs(log_probs, frames / batch["target_lengths"].clamp(min=1)[:, None], *phones)


def _ctc(answers: ModelOutputs, batch: Batch, smoothing: float) -> Tensor:
    assert answers.weights is not None
    lengths = answers.weights.count_nonzero(1)
    log_probs = answers.logits.float()
    loss = ctc_loss(log_probs, lengths, batch["target"], batch["target_lengths"])
    if answers.phones is not None:
        # words may be said too fast for all their phones to be told: those teach nothing here
        said = answers.phones.float().transpose(0, 1), batch["phones"]
        sizes = lengths, batch["phones_lengths"]
        loss = loss + PHONE_LOSS_WEIGHT * F.ctc_loss(*said, *sizes, zero_infinity=True)
    return loss * len(lengths)


def _class(model: nn.Module, batch: Batch) -> ModelOutputs:
    if "pixels" in batch:
        return ModelOutputs(model(batch["pixels"]))
    return ModelOutputs(model(batch["tokens"], batch.get("tokens_lengths")))


def _misjudged(answers: ModelOutputs, batch: Batch, smoothing: float) -> Tensor:
    own = classification_losses(answers.logits, batch["label"], smoothing)
    if "other" not in batch:
        return own.sum()
    other = classification_losses(answers.logits, batch["other"], smoothing)
    return (batch["share"] * own + (1 - batch["share"]) * other).sum()


def classification_losses(
    logits: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, " batch"]:
    """Cross-entropy of each example; where the label is -1, to the uniform distribution.

    An example of no class is to be answered by no class rather than another (outlier exposure,
    Hendrycks et al. 2019).

    >>> logits = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    >>> classification_losses(logits, torch.tensor([1, -1])).exp()
    tensor([2., 2.])
    """
    log_probs = logits.float().log_softmax(-1)
    foreign = labels < 0
    own = -log_probs.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    even = -log_probs.mean(-1)
    return torch.where(foreign, even, (1 - label_smoothing) * own + label_smoothing * even)


def _rows(name: str) -> Callable[[Batch], Tensor]:
    return lambda batch: torch.tensor(len(batch[name]))


def _tokens(name: str) -> Callable[[Batch], Tensor]:
    return lambda batch: _told(batch[name], batch.get(f"{name}_lengths"))


def _make(
    size: Callable[[Batch], Tensor],
    answers: Callable[[nn.Module, Batch], ModelOutputs],
    loss: Callable[[ModelOutputs, Batch, float], Tensor],
) -> Objective:
    """The loss of a batch; with `agree` that of two passes, which also have to say the same.

    The second reads what a batch has `again`, such as the same words in another voice.
    """

    def total(model: nn.Module, batch: Batch, smoothing: float = 0.0, agree: float = 0.0) -> Tensor:
        if not agree:
            return loss(answers(model, batch), batch, smoothing)
        twice = {
            name: torch.cat([x, batch.get(name + SECOND_VIEW, x)])
            for name, x in batch.items()
            if not name.endswith(SECOND_VIEW)
        }
        told = answers(model, twice)
        counts = None if told.weights is None else told.weights.chunk(2)[0]
        first, second = told.logits.chunk(2)
        return loss(told, twice, smoothing) / 2 + agree * symmetric_kl(first, second, counts)

    return Objective(size, total)


OBJECTIVES = {
    "translation": _make(_tokens("target"), _translation, _told_wrong("target")),
    "next_token": _make(_tokens("tokens"), _next_token, _told_wrong("tokens")),
    "ctc": _make(_rows("target"), _heard, _ctc),
    "class": _make(_rows("label"), _class, _misjudged),
}
