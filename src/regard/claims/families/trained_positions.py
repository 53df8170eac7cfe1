"""Claims about position and order that train models: order, counting, longer inputs."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.claims.charts import Lines
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.measurements import Batch, accuracy, train_classifier, train_model
from regard.errors import ShapeError
from regard.models import Classifier, ClassifierConfig
from regard.nn import Encoder, ToeplitzBias, TokenEmbedding, xavier_linear
from regard.ops import Causal, Mask, sinusoidal

TRAINED_LENGTH = 24
# tokens that no model was trained at: up to 1.3 and 2.7 times the trained length
RANGES = {"1 to 23": (1, 24), "24 to 31": (24, 32), "32 to 63": (32, 64)}


POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {"positions": "sinusoidal"},
    "learned": {"positions": "learned", "max_positions": 64},
    "relative": {"positions": "none", "relative_bias": "toeplitz", "max_distance": 16},
}


@claim("F3", source="exam", verdict="true", trained=True, study="order")
def order_without_positions(trial: Trial) -> Evidence:
    """An encoder without positions cannot learn the order of its tokens.

    Refutation: an accuracy above 0.6 on 'does A come before B' without positions and mask, or below
        0.9 with positions
    Remark: It holds for attention without a mask. A causal mask reveals the order too: two causal
        layers without positions solve the task.
    """
    accuracies = _order_study(trial)
    return Evidence(
        holds=max(accuracies["none"]) < 0.6
        and all(min(accuracies[kind]) > 0.9 for kind in ("sinusoidal", "learned", "relative")),
        measures={"accuracy, A before B, by positions": accuracies},
    )


@claim("F9", source="exam", verdict="conditional", trained=True, study="positions")
def sinusoids_extrapolate(trial: Trial) -> Evidence:
    """Sinusoidal positions let a model extrapolate to inputs longer than those it was trained on.

    Condition: 'Extrapolate' means that the codes exist there. A model trained on 24 tokens does not
        use them right beyond.
    Refutation: an accuracy beyond the trained length that stays above 0.9, or codes that are not
        defined there
    """
    accuracies = _length_study(trial)["sinusoidal"]
    defined = sinusoidal(torch.arange(10_000), 32).isfinite().all()
    return Evidence(
        holds=accuracies[:, 1:].min() > 0.9,
        holds_if=defined and accuracies[:, 0].min() > 0.9 and accuracies[:, 1:].max() < 0.8,
        measures=_by_range(accuracies, "sinusoidal"),
        chart=_range_chart({"sinusoidal": accuracies}),
    )


@claim("F10", source="homework", verdict="true", trained=True, study="positions")
def relative_extrapolates(trial: Trial) -> Evidence:
    """Relative positions extrapolate to longer inputs better than absolute ones.

    Refutation: an accuracy of relative positions beyond the trained length that is not above that
        of sinusoidal and learned ones in every seed
    """
    accuracies = _length_study(trial)
    relative = accuracies["relative"]
    margin = min((relative - accuracies[x])[:, 1:].min() for x in ("sinusoidal", "learned"))
    return Evidence(
        holds=margin > 0.1 and relative[:, 1].min() > 0.9,
        measures=_by_range(relative, "relative")
        | {"smallest lead over absolute positions, 24 to 63": margin},
        chart=_range_chart(accuracies),
    )


@claim("F11", source="homework", verdict="true", trained=True, study="positions")
def learned_positions_range(trial: Trial) -> Evidence:
    """Learned positions are tied to the range of positions seen in training.

    Refutation: rows of the table beyond that range that changed in training, or an accuracy there
        well above chance
    Remark: Those rows get no gradient and keep their initial values; beyond the table there is no
        row at all.
    """
    accuracies, change = _length_study(trial)["learned"], _copy_study(trial, "learned")[1]
    trained, beyond = change[:TRAINED_LENGTH].min(), change[TRAINED_LENGTH:].max()
    refused = False
    try:
        TokenEmbedding(4, 8, positions="learned", max_positions=64)(torch.zeros(1, 65).long())
    except ShapeError:
        refused = True
    return Evidence(
        holds=beyond == 0
        and trained > 0
        and accuracies[:, 0].min() > 0.9
        and accuracies[:, 1:].max() < 0.3
        and refused,
        measures={
            "largest change of a row beyond position 23": beyond,
            "smallest change of a row up to it": trained,
            **_by_range(accuracies, "learned"),
        },
        chart=Lines(range(64), {"change of its row in training": change}, "position"),
    )


@claim("F14", source="homework", verdict="true", trained=True, study="order")
def bag_task(trial: Trial) -> Evidence:
    """A task that does not depend on order needs no positions.

    Refutation: an accuracy without positions that is below that with positions by 0.03
    """
    accuracies = _train_readers(("none", "sinusoidal"), draw_bag, 80, trial)
    lead = torch.tensor(accuracies["none"]) - torch.tensor(accuracies["sinusoidal"])
    return Evidence(
        holds=min(accuracies["none"]) > 0.95 and lead.min() > -0.03,
        measures={
            "accuracy, more A than B, by positions": accuracies,
            "lead without positions": lead,
        },
    )


@claim("F15", source="homework", verdict="conditional", trained=True, study="positions")
def absolute_or_relative(trial: Trial) -> Evidence:
    """Relative positions are better than absolute ones.

    Condition: The task asks for a distance, such as 'the token before'. For a fixed place, such as
        'the third token', absolute positions are better.
    Refutation: relative positions that find the third token, or that fall behind at 'the token
        before' on longer inputs
    """
    kinds = ("sinusoidal", "relative")
    lengths = _length_study(trial)
    accuracies = {
        "token before, longer inputs": {kind: lengths[kind][:, 1] for kind in kinds},
        "third token": {kind: _copy_study(trial, kind, "third")[0][:, 0] for kind in kinds},
    }
    before, fixed = (x["relative"] - x["sinusoidal"] for x in accuracies.values())
    return Evidence(
        holds=min(before.min(), fixed.min()) > 0,
        holds_if=before.min() > 0.1 and fixed.max() < -0.1,
        measures={"accuracy": accuracies},
    )


class _Reader(nn.Module):
    """Two encoder layers, mean pooling and two classes; `mask` is that of every layer."""

    def __init__(self, mask: Mask | None = None, relative: bool = False, **options: Any):
        super().__init__()
        self.mask = mask
        self.embedding = TokenEmbedding(10, 32, **options)
        bias = ToeplitzBias(2, radius=8) if relative else None
        self.encoder = Encoder(2, 32, 2, norm_first=True, final_norm=True, relative=bias)
        self.head = xavier_linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens), mask=self.mask).mean(1))


READERS: dict[str, dict[str, Any]] = {
    "none": {"positions": "none"},
    "none, causal": {"positions": "none", "mask": Causal()},
    "sinusoidal": {"positions": "sinusoidal"},
    "learned": {"positions": "learned", "max_positions": 16},
    "relative": {"positions": "none", "relative": True},
}


def _order_study(trial: Trial) -> dict[str, list[float]]:
    """Accuracy on 'does token 0 come before token 1' by kind of positions, per seed."""
    return _train_readers(READERS, _draw_order, 150, trial)


def _train_readers(
    kinds: Iterable[str], draw: Callable[..., Batch], steps: int, trial: Trial
) -> dict[str, list[float]]:
    """Accuracy of trained readers on new sequences, by kind of positions, per seed."""
    task = draw, trial.size(steps, 1000), trial.device
    return {kind: [_train_reader(kind, n, *task) for n in trial.seeds(3, 5)] for kind in kinds}


@cache
def _train_reader(
    kind: str, seed: int, draw: Callable[..., Batch], steps: int, device: str
) -> float:
    options = {"steps": steps, "lr": 6e-3, "seed": seed, "device": device}
    model = train_classifier(lambda: _Reader(**READERS[kind]), draw, **options)
    return accuracy(model, draw(torch.Generator().manual_seed(10_000 + seed), 2000))


def _draw_order(rng: torch.Generator, count: int = 32, length: int = 8) -> Batch:
    """Sequences with one 0 and one 1, each also with the two swapped; label: 0 comes first."""
    tokens = torch.randint(2, 10, (count // 2, length), generator=rng)
    places = torch.rand(count // 2, length, generator=rng).argsort(-1)[:, :2]
    swapped, tokens = (
        tokens.scatter(1, places, torch.tensor([pair]).expand(count // 2, 2))
        for pair in ([1, 0], [0, 1])
    )
    first = (places[:, 0] < places[:, 1]).long()
    return {"inputs": torch.cat([tokens, swapped]), "labels": torch.cat([first, 1 - first])}


def draw_bag(rng: torch.Generator, count: int = 32, length: int = 8) -> Batch:
    """Sequences of four tokens; label: more of 0 than of 1."""
    tokens = torch.randint(4, (count, length), generator=rng)
    return {"inputs": tokens, "labels": ((tokens == 0).sum(1) > (tokens == 1).sum(1)).long()}


def _length_study(trial: Trial) -> dict[str, Tensor]:
    """Accuracy on 'the token before', (seed, range of positions), by kind of positions."""
    return {kind: _copy_study(trial, kind)[0] for kind in POSITIONS}


def _copy_study(trial: Trial, kind: str, task: str = "previous") -> tuple[Tensor, Tensor]:
    """Accuracy per seed and range; change of each row of a learned table, largest over both."""
    steps = trial.size(400 if task == "previous" else 150, 1500)
    results = [_train_copy(kind, task, n, steps, trial.device) for n in trial.seeds(3, 5)]
    accuracies, changes = zip(*results, strict=True)
    return torch.tensor(accuracies, dtype=torch.float64), torch.stack(changes).amax(0)


@cache
def _train_copy(
    kind: str, task: str, seed: int, steps: int, device: str
) -> tuple[list[float], Tensor]:
    """One attention layer trained on 6 to 24 tokens, tested on ranges up to 63."""
    sizes = {"vocab": 10, "classes": 10, "layers": 1, "dim": 32, "heads": 2, "pooling": "none"}
    config, start = ClassifierConfig(**sizes | POSITIONS[kind]), dict[str, Tensor]()

    def build() -> Classifier:
        model = Classifier(config)
        start.update({name: p.detach().clone() for name, p in model.named_parameters()})
        return model

    def draw(rng: torch.Generator) -> Batch:
        length = int(torch.randint(6, TRAINED_LENGTH + 1, (), generator=rng))
        return {"tokens": torch.randint(10, (32, length), generator=rng)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, target = model(batch["tokens"]), _copy_target(batch["tokens"], task)
        return F.cross_entropy(logits[:, 1:].flatten(0, 1), target[:, 1:].flatten())

    options = {"lr": 1e-2, "seed": seed, "device": device, "weight_decay": 0.0}
    model = train_model(build, draw, loss, steps=steps, **options).cpu()
    tokens = torch.randint(10, (128, 64), generator=torch.Generator().manual_seed(seed))
    accuracies = []
    for first, last in RANGES.values():
        part = tokens[:, :last]
        with torch.no_grad():
            right = model(part).argmax(-1) == _copy_target(part, task)
        accuracies.append(right[:, first:].double().mean().item())
    name = "embedding.position_embeddings"
    if name not in start:
        return accuracies, torch.zeros(64)
    return accuracies, (model.state_dict()[name] - start[name].cpu()).abs().amax(-1)


def _copy_target(tokens: Tensor, task: str) -> Tensor:
    return tokens.roll(1, -1) if task == "previous" else tokens[:, 2:3].expand_as(tokens)


def _by_range(accuracies: Tensor, kind: str) -> dict[str, Tensor]:
    columns = zip(RANGES, accuracies.unbind(1), strict=True)
    return {f"accuracy, {kind}, positions {name}": x for name, x in columns}


def _range_chart(accuracies: dict[str, Tensor]) -> Lines:
    """Mean accuracy per range of positions, by kind of positions."""
    middles = [(first + last - 1) / 2 for first, last in RANGES.values()]
    means = {kind: x.mean(0) for kind, x in accuracies.items()}
    axes = "position, middle of its range (trained: 0 to 23)", "accuracy, token before"
    return Lines(middles, means, *axes)
