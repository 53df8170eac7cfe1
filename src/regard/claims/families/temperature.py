"""Claims about temperature: hard and soft attention, dropout of weights."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.claims.charts import Lines, Points
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.measurements import Batch, log_slope, train_model
from regard.decode import Sampling, sampling_distribution
from regard.ops import attend, dot, softargmax, straight_through, survey


@claim("B1", source="homework", verdict="conditional")
def large_beta_selects_one(trial: Trial) -> Evidence:
    """As β grows without bound, attention selects the best key.

    Condition: The largest score is unique; keys that tie for it share the weight equally.
    Refutation: a unique best key whose weight does not go to 1, or tied keys of which one gets it
    """
    betas = torch.logspace(-3, 3, 25)
    order = trial.uniform(100, 6).argsort(-1)
    top, limits = {}, {}
    for n in (1, 2, 3):  # keys that tie for the largest score
        scores = torch.arange(6).clamp(max=6 - n)[order].double()
        top[n] = torch.stack([softargmax(scores, b).amax(-1) for b in betas.tolist()])
        limits[n] = softargmax(scores, torch.inf).amax(-1)
    one_hot = {n: (curve[-1] - 1).abs().max() < 1e-12 for n, curve in top.items()}
    gaps = [(x - 1 / n).abs().max() for n in top for x in (top[n][-1], limits[n])]
    curves = {f"{n} best of 6 keys": curve.mean(-1) for n, curve in top.items()}
    return Evidence(
        holds=all(one_hot.values()),
        holds_if=one_hot[1] and max(gaps) < 1e-12,
        measures={"weight at β = 1000": {f"{n} best": x[-1].mean() for n, x in top.items()}},
        chart=Lines(betas, curves, "β", "largest weight", log="x"),
    )


@claim("B2", source="homework", verdict="true")
def zero_beta_averages(trial: Trial) -> Evidence:
    """As β goes to 0, attention returns the plain mean of the values.

    Refutation: a distance from the mean that does not vanish with β
    """
    q, k, v = trial.normal(100, 4, 8), trial.normal(100, 6, 8), trial.normal(100, 6, 8)
    betas = torch.logspace(-8, 1, 19).tolist()

    def distances(beta: float) -> Tensor:
        return (attend(q, k, v, scale=beta)[0] - v.mean(-2, keepdim=True)).norm(dim=-1)

    curve = [distances(beta).mean() for beta in betas]
    power, largest = log_slope(betas[:8], curve[:8]), {b: distances(b).max() for b in (0.0, 1e-8)}
    return Evidence(
        holds=largest[1e-8] < 1e-6 and largest[0.0] < 1e-12 and 0.9 < power < 1.1,
        measures={
            "largest |h − mean v| at β = 0": largest[0.0],
            "largest |h − mean v| at β = 1e-8": largest[1e-8],
            "power of β": power,
        },
        chart=Lines(betas, {"|h − mean v|": curve}, "β", log="xy"),
    )


@claim("B3", source="homework", verdict="true")
def entropy_falls(trial: Trial) -> Evidence:
    """The entropy of the attention weights falls as β grows.

    Refutation: a row of scores, not all equal, whose entropy rises with β
    Remark: It falls from log m, m the number of keys, to the log of the number of best keys.
    """
    q, k = trial.normal(200, 8), trial.normal(16, 8)
    betas, rows = torch.linspace(0, 3, 31).tolist(), []
    for beta in betas:
        lse = attend(q, k, k, scale=beta)[1]
        rows.append(survey(q, k, lse, scale=beta, statistics=["entropy"]).entropy)
    entropy = torch.stack(rows) / math.log(16)
    steps = entropy.diff(dim=0)[entropy[1:] > 1e-6]  # below that, only rounding is left
    low, middle, high = entropy.quantile(torch.tensor([0.1, 0.5, 0.9]).double(), dim=1)
    name = "median of 200 queries"
    return Evidence(
        holds=steps.max() < 0,
        measures={
            "share of steps of β with lower entropy": (steps < 0).double().mean(),
            "entropy / log m at β = 1": entropy[10],
        },
        chart=Lines(betas, {name: middle}, "β", "entropy / log m", bands={name: (low, high)}),
    )


@claim("B4", source="homework", verdict="true")
def dominant_value_survives(trial: Trial) -> Evidence:
    """A value comes through attention unchanged when the score of its key dominates.

    Refutation: a lost weight 1 − a above (m − 1) exp(−βδ), δ the lead of the best score
    Remark: Quantified: 1 − a ≤ (m − 1) exp(−βδ), so a lead of βδ = 10 keeps all but 0.05% of a
        value among 10 keys.
    """
    scores = 3 * trial.normal(1000, 10)
    best, second = scores.topk(2).values.unbind(-1)
    lead, ends = best - second, torch.tensor([2.2, 12])
    lost, bound = 1 - softargmax(scores).amax(-1), 9 * torch.exp(-lead)
    within = lost <= bound + 1e-12
    v, zero = trial.normal(1000, 10, 4), torch.zeros(1000, 1, 1, dtype=torch.float64)
    out = attend(zero + 1, scores[..., None], v, scale=1.0)[0][:, 0]
    distance = (out - v[torch.arange(1000), scores.argmax(-1)]).norm(dim=-1)
    points = {"300 of the draws": (lead[:300], lost[:300])}
    curves = {"bound (m − 1) exp(−βδ)": (ends, 9 * torch.exp(-ends))}
    axes = "lead of the best score, βδ", "lost weight 1 − a"
    return Evidence(
        holds=within.all() and (distance <= bound * torch.cdist(v, v).amax((-2, -1)) + 1e-12).all(),
        measures={
            "share of draws within the bound": within.double().mean(),
            "largest ratio of loss and bound": (lost / bound).max(),
        },
        chart=Points(points, *axes, log="y", curves=curves),
    )


@claim("B5", source="homework", verdict="false")
def beta_is_temperature(trial: Trial) -> Evidence:
    """A large β is a large temperature.

    Correction: The temperature is 1/β: a large β is cold and selects, a small β is hot and mixes.
    Refutation: weights at β that equal the softmax at temperature β
    """
    scores, betas = trial.normal(100, 8), torch.logspace(-1, 1, 21).tolist()
    entropy, errors = {"as β": [], "as temperature": []}, {"β": [], "1/β": []}
    for beta in betas:
        w = softargmax(scores, beta)
        hot, cold = at_temperature(scores, beta), at_temperature(scores, 1 / beta)
        errors["β"].append((w - hot).abs().amax(-1).mean())
        errors["1/β"].append((w - cold).abs().max())
        for name, x in zip(entropy, (w, hot), strict=True):
            entropy[name].append(torch.special.entr(x).sum(-1).mean())
    far = [e for e, beta in zip(errors["β"], betas, strict=True) if not 0.8 < beta < 1.25]
    return Evidence(
        holds=max(errors["β"]) < 1e-9,
        corrected=max(errors["1/β"]) < 1e-9 and min(far) > 0.01,
        measures={
            "largest difference of weights, temperature = 1/β": max(errors["1/β"]),
            "mean difference of weights, temperature = β = 10": errors["β"][-1],
        },
        chart=Lines(betas, entropy, "β, or temperature", "entropy (nats)", log="x"),
    )


@claim("B6", source="homework", verdict="conditional", trained=True)
def argmax_replaces_softmax(trial: Trial) -> Evidence:
    """Hard attention, the argmax, can simply replace softmax.

    Condition: No gradient has to pass through it: a trained model keeps its accuracy, but training
        with argmax leaves W_Q and W_K as they were.
    Refutation: training with argmax that reaches the accuracy of softmax, or a model trained with
        softmax that argmax breaks
    """
    kinds = {"softmax": softargmax, "argmax": hard, "straight-through": straight_through}
    scores = {name: [] for name in (*kinds, "softmax, then argmax")}
    steps, gradients = trial.size(200, 1000), []
    for seed in trial.seeds(3, 8):
        for name, choose in kinds.items():
            model = train_lookup(seed, steps, trial.device, choose=choose)
            scores[name].append(lookup_accuracy(model, seed, trial.device))
            if name == "softmax":
                model.choose = hard
                scores["softmax, then argmax"].append(lookup_accuracy(model, seed, trial.device))
            if name == "argmax":
                model(new_items(seed, trial.device)).sum().backward()
                gradients.append(model.to_q.weight.grad)
    soft, argmax, _, swapped = (min(x) for x in scores.values())
    untouched = all(gradient is None for gradient in gradients)
    return Evidence(
        holds=max(scores["softmax"]) - argmax < 0.1 and soft - swapped < 0.1,
        holds_if=soft > 0.95 and swapped > 0.95 and untouched,
        measures={"accuracy": scores},
    )


@claim("B7", source="homework", verdict="conditional", trained=True)
def dropout_diffuses(trial: Trial) -> Evidence:
    """Dropout on the attention weights makes attention more diffuse.

    Condition: It holds for the weights that a model learns, where several keys hold what it needs.
        In a pass with dropout, the weights in use are less diffuse than without.
    Refutation: learned weights of the same entropy with and without dropout where the answer has
        copies, or realised weights of higher entropy
    Remark: Where one key alone holds the answer, the learned weights stay on it.
    """
    copies = {"learned, one key has the answer": 1, "learned, three keys have it": 3}
    steps, rates = trial.size(200, 1000), {"no dropout": 0.0, "dropout 0.5": 0.5}

    def entropy(seed: int, copies: int, rate: float) -> float:
        model = train_lookup(seed, steps, trial.device, copies=copies, dropout=rate)
        return lookup_entropy(model, copies, seed, trial.device)

    entropies = {
        name: {
            k: torch.tensor([entropy(s, n, r) for s in trial.seeds(3, 8)]) for k, r in rates.items()
        }
        for name, n in copies.items()
    }
    q, k = trial.normal(500, 8), trial.normal(16, 8)
    w = {name: attend(q, k, torch.eye(16).double(), dropout=r)[0] for name, r in rates.items()}
    entropies["in use in one pass"] = {
        name: torch.special.entr(x / x.sum(-1, keepdim=True)).sum(-1) for name, x in w.items()
    }
    changes = {name: x["dropout 0.5"] - x["no dropout"] for name, x in entropies.items()}
    one, three, in_use = changes.values()
    falls = Measure.mean("in use", in_use)
    return Evidence(
        holds=falls.above(0) and min(one.min(), three.min()) > 0.1,
        holds_if=three.min() > 0.1 and falls.below(0),
        measures={
            "entropy of the weights (nats)": entropies,
            "change of entropy": changes,
            "standard deviation of the sums of weights in use": w["dropout 0.5"].sum(-1).std(),
        },
    )


@claim("B8", source="homework", verdict="true")
def linear_layer_matches_limits(trial: Trial) -> Evidence:
    """A fully connected layer with the identity as its weights keeps each value, and one with equal
    weights averages them, as attention does for large and small β.

    Refutation: an output of the linear layer that differs from attention in the limit
    Remark: Only in the limits, and for these keys: weights of attention follow the input, those of
        a linear layer stay.
    """
    keys = torch.linalg.qr(trial.normal(100, 6, 6)).Q  # orthonormal
    v, other = trial.normal(100, 6, 4), trial.normal(100, 6, 6)
    equal = torch.ones(6, 6).double() / 6
    layers = {"to identity": torch.eye(6).double(), "to equal weights": equal}
    betas = torch.logspace(-4, 1.4, 28).tolist()
    # a linear layer over the positions
    outputs = {name: nn.functional.linear(v.mT, w).mT for name, w in layers.items()}
    curves = {
        name: [(attend(keys, keys, v, scale=b)[0] - out).abs().max() for b in betas]
        for name, out in outputs.items()
    }
    ends = zip((1e4, 0.0), outputs.values(), strict=True)
    limits = [(attend(keys, keys, v, scale=b)[0] - out).abs().max() for b, out in ends]
    follows = attend(other, other, v, scale=1.0)[0] - attend(keys, keys, v, scale=1.0)[0]
    return Evidence(
        holds=max(limits) < 1e-9,
        measures={
            "largest difference from the identity, β = 10⁴": limits[0],
            "largest difference from equal weights, β = 0": limits[1],
            "change of attention's output with other keys": follows.abs().mean(),
        },
        chart=Lines(betas, curves, "β", "largest difference", log="xy"),
    )


class Lookup(nn.Module):
    """Reads the value of the named item: one attention from a name to items (name, value, place).

    >>> model = Lookup(items=6)
    >>> model(draw_items(torch.Generator())).shape
    torch.Size([64, 8])
    """

    def __init__(
        self,
        *,
        items: int = 6,
        dim: int = 16,
        head_dim: int = 16,
        scale: float | None = None,
        choose: Callable[[Tensor], Tensor] = softargmax,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.names, self.values = nn.Embedding(SYMBOLS, dim), nn.Embedding(SYMBOLS, dim)
        self.places = nn.Parameter(torch.randn(items, dim))
        self.to_q, self.to_k = (nn.Linear(dim, head_dim, bias=False) for _ in range(2))
        for layer in (self.to_q, self.to_k):
            nn.init.normal_(layer.weight, std=dim**-0.5)  # features of variance 1
        self.readout = nn.Linear(dim, SYMBOLS)
        self.scale = head_dim**-0.5 if scale is None else scale
        self.choose, self.dropout = choose, nn.Dropout(dropout)

    def weights(self, batch: Batch) -> Tensor:
        """Weights of the items, for the name that is looked up."""
        q = self.to_q(self.names(batch["query"]))[:, None]
        k = self.to_k(self.names(batch["names"]) + self.places)
        return self.choose(self.scale * dot(q, k))

    def forward(self, batch: Batch) -> Tensor:
        w = self.dropout(self.weights(batch))
        return self.readout((w @ self.values(batch["values"]))[:, 0])


SYMBOLS = 8


def draw_items(rng: torch.Generator, copies: int = 1, items: int = 6, size: int = 64) -> Batch:
    """A batch of items in random order, each present `copies` times, and a name to look up."""
    names = torch.rand(size, SYMBOLS, generator=rng).argsort(-1)[:, : items // copies]
    values = torch.randint(SYMBOLS, names.shape, generator=rng)
    target = torch.randint(names.shape[1], (size, 1), generator=rng)
    order = torch.rand(size, items, generator=rng).argsort(-1)
    return {
        "names": names.repeat(1, copies).gather(1, order),
        "values": values.repeat(1, copies).gather(1, order),
        "query": names.gather(1, target)[:, 0],
        "target": values.gather(1, target)[:, 0],
    }


def lookup_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the value looked up."""
    return nn.functional.cross_entropy(model(batch), batch["target"])


def train_lookup(seed: int, steps: int, device: str, *, copies: int = 1, **options: Any) -> Lookup:
    """A `Lookup` with these options, trained by AdamW."""
    draw = partial(draw_items, copies=copies)
    build = partial(Lookup, **options)
    return train_model(build, draw, lookup_loss, steps=steps, lr=1e-2, seed=seed, device=device)


def new_items(seed: int, device: str, copies: int = 1) -> Batch:
    """Items of a seed that no training uses."""
    batch = draw_items(torch.Generator().manual_seed(seed + 10**9), copies, size=512)
    return {name: x.to(device) for name, x in batch.items()}


@torch.no_grad()
def lookup_accuracy(model: Lookup, seed: int, device: str) -> float:
    """Share of values looked up correctly in new items."""
    batch = new_items(seed, device)
    return float((model(batch).argmax(-1) == batch["target"]).double().mean())


@torch.no_grad()
def lookup_entropy(model: Lookup, copies: int, seed: int, device: str) -> float:
    """Mean entropy of the learned weights over new items, in nats."""
    w = model.weights(new_items(seed, device, copies))
    return float(torch.special.entr(w).sum(-1).mean())


def hard(scores: Tensor) -> Tensor:
    """One-hot weights of the largest score."""
    return softargmax(scores, torch.inf)


def at_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Softmax at a temperature, as a language model samples with."""
    p, order = sampling_distribution(scores, Sampling(temperature=temperature))
    return torch.zeros_like(p).scatter(-1, order, p)
