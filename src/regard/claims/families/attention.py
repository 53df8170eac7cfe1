"""Claims about basic attention: weights, mixtures, projections, masks."""

import math
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from regard.claims.charts import Lines, Maps, Points
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.measurements import count_parameters, jacobian, to_tensor
from regard.inspection import all_hidden_states
from regard.models import Classifier, ClassifierConfig
from regard.nn import MultiHeadAttention, TokenEmbedding
from regard.ops import Causal, Local, attend, attention_weights, dot, softargmax
from regard.work import solve


@claim("A1", source="exam", verdict="true")
def weights_sum_to_one(trial: Trial) -> Evidence:
    """The attention weights of a query sum to 1.

    Refutation: a sum that differs from 1 by more than 1e-12 in float64
    """
    lengths = [1, 2, 8, 64, 512]
    maps = [attention_weights(trial.normal(16, 8), trial.normal(n, 8)) for n in lengths]
    error = max((w.sum(-1) - 1).abs().max() for w in maps)
    sums, peaks = [w.sum(-1).mean() for w in maps], [w.amax(-1).mean() for w in maps]
    curves = {"sum of the weights": sums, "largest weight": peaks}
    return Evidence(
        holds=error < 1e-12,
        measures={"largest |Σ weights − 1|": error},
        chart=Lines(lengths, curves, "keys", "mean over 16 queries", log="x"),
    )


@claim("A2", source="exam", verdict="conditional")
def higher_score_higher_weight(trial: Trial) -> Evidence:
    """A higher score means a higher weight.

    Condition: The two scores belong to the same query, and the scale β is positive.
    Refutation: two keys of one query in the wrong order, or no such pair across queries
    """
    q, k = trial.normal(100, 4, 4), trial.normal(100, 8, 4)
    scores, w = dot(q, k), attention_weights(q, k)
    within = [same_order(scores, attention_weights(q, k, scale=b)).mean() for b in (0.1, 0.5, 2)]
    inverted = same_order(scores, attention_weights(q, k, scale=-0.5)).mean()
    across = same_order(scores.flatten(-2), w.flatten(-2)).mean(-1)
    return Evidence(
        holds=min(*within, across.min(), inverted) == 1,
        holds_if=min(within) == 1,
        measures={
            "pairs in order, one query": min(within),
            "pairs in order, keys of different queries": across,
            "pairs in order, one query, β < 0": inverted,
        },
        chart=Points({f"query {i}": (scores[0, i], w[0, i]) for i in range(4)}, "score", "weight"),
    )


@claim("A3", source="exam", verdict="true")
def output_is_a_mixture(trial: Trial) -> Evidence:
    """The output of attention is a weighted mixture of the values.

    Refutation: an output outside the convex hull of the values, in some direction
    Remark: The mixture is convex: an output never leaves the convex hull of the values.
    """
    angles = torch.linspace(0, 2 * math.pi, 361, dtype=torch.float64)
    directions = torch.stack([angles.cos(), angles.sin()])
    k, v, q = trial.normal(9, 4), trial.normal(9, 2), trial.normal(40, 4)
    betas = torch.logspace(-3, 3, 50)
    outputs = torch.stack([attend(q, k, v, scale=float(beta))[0] for beta in betas])
    reach = (v @ directions).max(0)
    excess = (outputs @ directions - reach.values).max()
    drawn = outputs[:, :3].flatten(0, 1).unbind(-1)
    points = {"values": v.unbind(-1), "outputs of 3 queries, 50 scales": drawn}
    hull = {"convex hull": v[reach.indices].unbind(-1)}
    return Evidence(
        holds=excess < 1e-12,
        measures={"largest distance outside the hull": excess.clamp(min=0)},
        chart=Points(points, "first feature", "second feature", curves=hull),
    )


@claim("A4", source="exam", verdict="false")
def token_attends_to_itself(trial: Trial) -> Evidence:
    """In attention without projections, a token attends mostly to itself.

    Correction: It does where all vectors have the same norm; a longer vector takes the weight.
    Refutation: a token that keeps its largest weight on itself next to a neighbour of any norm
    """
    neighbour = torch.tensor([2.0, 0.5], dtype=torch.float64) / math.hypot(2, 0.5)
    lengths = torch.linspace(0.5, 3, 26, dtype=torch.float64)
    first = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(26, 2)
    tokens = torch.stack([first, lengths[:, None] * neighbour], -2)
    itself, other = attention_weights(tokens, tokens, scale=1.0)[:, 0].unbind(-1)
    alike = nn.functional.normalize(trial.normal(200, 12, 8), dim=-1)  # norm 1
    largest = attention_weights(alike, alike, scale=1.0).argmax(-1)
    share = largest.eq(torch.arange(12)).double().mean()
    curves = {"itself": itself, "neighbour": other}
    return Evidence(
        holds=(itself > other).all(),
        corrected=share == 1 and itself[-1] < other[-1] / 2,
        measures={
            "share of tokens with the largest weight on themselves, equal norms": share,
            "weight on itself, neighbour of norm 1": itself[5],
            "weight on itself, neighbour of norm 3": itself[-1],
        },
        chart=Lines(lengths, curves, "norm of the neighbour", "weight of a token of norm 1"),
    )


@claim("A5", source="exam", verdict="true")
def matrix_form_equals_loop(trial: Trial) -> Evidence:
    """The product E Eᵀ gives the scores of all positions at once: attention in matrix form equals
    the sums written out per position.

    Refutation: a difference above 1e-12 between the loop over positions and the matrix form
    Remark: Without projections the scores are symmetric; the weights are not, as each row is
        divided by its own sum.
    """
    differences, x, loop = [], torch.empty(0), torch.empty(0)
    for n in (1, 2, 4, 8):
        x, rows = trial.normal(n, 8), []
        for i in range(n):
            exps = [(x[i] * x[j]).sum().div(math.sqrt(8)).exp() for j in range(n)]
            rows.append(sum(e / sum(exps) * x[j] for j, e in enumerate(exps)))
        loop = torch.stack(rows)
        differences.append((loop - attend(x, x, x)[0]).abs().max())
    scores, w = dot(x, x), attention_weights(x, x)
    maps = {"outputs by a loop": loop, "in matrix form": attend(x, x, x)[0]}
    return Evidence(
        holds=max(differences) < 1e-12,
        measures={
            "largest |loop − matrix form|": max(differences),
            "largest |S − Sᵀ| of the scores": (scores - scores.T).abs().max(),
            "largest |A − Aᵀ| of the weights": (w - w.T).abs().max(),
        },
        chart=Maps(maps, "feature", "token"),
    )


@claim("A7", source="homework", verdict="true")
def conventions_agree(trial: Trial) -> Evidence:
    """Writing tokens as rows or as columns gives the same result.

    Refutation: an exact result in one convention that is not the transpose of the other
    Remark: All matrices are transposed and products change their order: Q Kᵀ and A V with rows, Kᵀ
        Q and V A with columns.
    """
    equal, maps = [], {}
    for _ in range(2):
        given = {name: trial.integers(3, 2, 2) - 1 for name in ("W_Q", "W_K", "W_V")}
        given["X"] = trial.integers(5, 3, 2) - 2
        solved = {}
        for convention in ("rows", "columns"):
            turned = {n: (x if convention == "rows" else x.T).tolist() for n, x in given.items()}
            solved[convention] = solve({"given": turned, "convention": convention, "scale": 1})
        equal += [solved["columns"][name] == solved["rows"][name].T for name in "SAH"]
        maps = {f"A, tokens as {c}": to_tensor(solution["A"]) for c, solution in solved.items()}
    return Evidence(
        holds=all(equal),
        measures={"share of exactly equal matrices": sum(equal) / len(equal)},
        chart=Maps(maps, "column", "row"),
    )


@claim("A8", source="homework", verdict="true")
def output_shape(trial: Trial) -> Evidence:
    """The size of the output does not depend on the number of keys: n queries and values of t
    features give n vectors of t features.

    Refutation: sizes for which the output has another shape
    """
    right = []
    for d, n, m, t in (trial.integers(9, 100, 4) + 1).tolist():
        out, _ = attend(trial.normal(n, d), trial.normal(m, d), trial.normal(m, t))
        right.append(out.shape == (n, t))
    q, keys = trial.normal(5, 4), [1, 2, 4, 8, 16, 32]
    pairs = [(trial.normal(m, 4), trial.normal(m, 3)) for m in keys]
    curves = {
        "weights, 5 × m": [attention_weights(q, k).numel() for k, _ in pairs],
        "output, 5 × 3": [attend(q, k, v)[0].numel() for k, v in pairs],
    }
    return Evidence(
        holds=all(right),
        measures={"sizes with an output of n × t": sum(right) / len(right)},
        chart=Lines(keys, curves, "keys m", "numbers", log="xy"),
    )


@claim("A9", source="exam", verdict="true")
def projections_are_expressive(trial: Trial) -> Evidence:
    """Separate projections for queries, keys and values make attention more expressive.

    Refutation: one shared projection that fits an asymmetric pattern as well as two do
    Remark: Scores without projections, or with the same one for queries and keys, are symmetric.
        Only the product W_Q W_Kᵀ counts: many pairs of projections give the same scores.
    """
    x, target = trial.normal(5, 6, 8), torch.arange(1, 7) % 6  # token i attends to token i + 1
    w_q, w_k, shared = (0.3 * trial.normal(5, 8, 8) for _ in range(3))
    fits = {"shared": fit_scores(x, target, shared), "separate": fit_scores(x, target, w_q, w_k)}
    losses = {name: _cross_entropy(w, target) for name, w in fits.items()}
    change = trial.normal(8, 8)
    same = dot(x @ w_q @ change, x @ w_k @ change.inverse().T) - dot(x @ w_q, x @ w_k)
    maps = {f"{name} projections": w[0] for name, w in fits.items()}
    return Evidence(
        holds=losses["separate"].max() < 0.1 and losses["shared"].min() > 0.5,
        measures={"cross-entropy": losses, "change of scores, W_Q M and W_K M⁻ᵀ": same.abs().max()},
        chart=Maps({"target": torch.eye(6)[target]} | maps),
    )


@claim("A10", source="exam", verdict="true")
def parameters_per_length(trial: Trial) -> Evidence:
    """The number of parameters of attention grows with the square of the width and not with the
    length; any number of vectors goes in and comes out.

    Refutation: a count that changes with the length, an error at some length, or a growth of the
        count with another power of the width
    Remark: A learned table of positions adds a row per position.
    """
    widths, lengths = [8, 16, 32, 64], [1, 3, 7, 50, 200]
    counts = [count_parameters(MultiHeadAttention(d, 1, qkv_bias=False)) for d in widths]
    layer = MultiHeadAttention(8, 1, qkv_bias=False).double()
    shapes = [layer(trial.normal(n, 8)).shape == (n, 8) for n in lengths]
    after = count_parameters(layer)
    dense = [count_parameters(nn.Linear(8 * n, 8 * n, bias=False)) for n in lengths]
    growth = [math.log2(b / a) for a, b in pairwise(counts)]
    curves = {"attention": [after] * 5, "linear layer over all positions": dense}
    return Evidence(
        holds=all(shapes) and after == counts[0] and all(abs(x - 2) < 1e-9 for x in growth),
        measures={
            "parameters at width 8, any length": after,
            "power of the width": sum(growth) / len(growth),
        },
        chart=Lines(lengths, curves, "length", "parameters at width 8", log="xy"),
    )


@claim("A11", source="exam", verdict="conditional")
def same_word_same_projections(trial: Trial) -> Evidence:
    """The same word has the same query, key and value at every position.

    Condition: No position was added to its vector before the projection, nor a rotation after.
    Refutation: projections that differ without positions, or agree with sinusoidal or rotary ones
    """
    word, distances = torch.full((64,), 3), {}
    for name in ("no", "sinusoidal", "rotary"):
        torch.manual_seed(trial.seed)
        kind = "sinusoidal" if name == "sinusoidal" else "none"
        embedding = TokenEmbedding(10, 16, positions=kind).double()
        theta = 10000.0 if name == "rotary" else None
        layer = MultiHeadAttention(16, 1, rope_theta=theta).double()
        x = embedding(word)
        qkv = torch.cat([layer.project_query(x), *layer.project_kv(x)], -1)[0]
        distances[f"{name} positions"] = (qkv - qkv[0]).norm(dim=-1).detach()
    # equal rows of a matrix product may differ in the last bits
    same = {name: distance.max() < 1e-12 for name, distance in distances.items()}
    axes = "position of the word", "distance of (q, k, v) from position 0"
    return Evidence(
        holds=all(same.values()),
        holds_if=same.pop("no positions") and not any(same.values()),
        measures={"largest distance": {name: x.max() for name, x in distances.items()}},
        chart=Lines(range(64), distances, *axes),
    )


@claim("A12", source="exam", verdict="conditional")
def every_position_is_reached(trial: Trial) -> Evidence:
    """In one layer of attention, every position reaches every other position directly.

    Condition: No mask is applied; with one, exactly the allowed positions are reached.
    Refutation: a Jacobian block that is zero where the mask allows, or not zero where it forbids
    """
    layer, x = MultiHeadAttention(8, 2).double(), trial.normal(8, 8)
    masks = {"no mask": None, "causal": Causal(), "local, radius 1": Local(1)}
    reach, expected = {}, {}
    for name, mask in masks.items():
        # output i by input j
        reach[name] = jacobian(partial(layer, mask=mask), x).norm(dim=(1, 3))
        dense = torch.ones(8, 8) if mask is None else mask.dense(8, 8)
        expected[name] = dense.bool() | torch.eye(8, dtype=torch.bool)
    return Evidence(
        holds=all((block > 0).all() for block in reach.values()),
        holds_if=all(torch.equal(reach[name] > 0, expected[name]) for name in masks),
        measures={"share of reached pairs": {n: (x > 0).double().mean() for n, x in reach.items()}},
        chart=Maps(reach, "input", "output"),
    )


@claim("A13", source="exam", verdict="true")
def context_changes_vectors(trial: Trial) -> Evidence:
    """The same word gets different vectors in different contexts.

    Refutation: a word whose vector after attention is the same in two contexts
    Remark: Its embedding, before the first layer, is the same in both.
    """
    config = ClassifierConfig(vocab=50, classes=0, layers=3, dim=32, heads=4)
    rows = []
    for seed in range(10):
        torch.manual_seed(1000 * trial.seed + seed)
        model = Classifier(config).eval()
        tokens = trial.integers(49, 2, 8) + 1
        tokens[:, 4] = 0  # the word, at the same position of two random contexts
        states = all_hidden_states(model, tokens)
        rows.append(torch.stack([(x[0, 4] - x[1, 4]).norm() for x in states]))
    distances = torch.stack(rows).detach()
    names = ["embedding", *(f"after layer {n}" for n in (1, 2, 3))]
    by_layer = dict(zip(names, distances.T, strict=True))
    return Evidence(
        holds=distances[:, 0].max() == 0 and distances[:, 1:].min() > 0.01,
        measures={"distance in two contexts": by_layer},
    )


@claim("A14", source="problem set", verdict="true")
def softmax_gives_probabilities(trial: Trial) -> Evidence:
    """Softmax turns scores into probabilities between 0 and 1.

    Refutation: a weight below 0 or above 1, or weights of a query that do not sum to 1
    Remark: In exact arithmetic a weight is never 0 or 1. In float32 it is 0 by a mask, or by
        underflow, where the score is about 104 below the largest.
    """
    sizes = torch.logspace(-2, 4, 25)
    w = softargmax((sizes[:, None, None] * trial.normal(25, 100, 8)).float())
    gaps = torch.arange(0.0, 121.0)
    low = {
        name: softargmax(torch.stack([-gaps.to(dtype), gaps.to(dtype) * 0], -1))[:, 0]
        for name, dtype in {"float32": torch.float32, "float64": torch.float64}.items()
    }
    error = (w.sum(-1) - 1).abs().max()
    return Evidence(
        holds=w.min() >= 0 and w.max() <= 1 and error < 1e-5,
        measures={
            "smallest weight": w.min(),
            "largest weight": w.max(),
            "largest |Σ − 1|, float32": error,
            "score gap with weight exactly 0 in float32": gaps[low["float32"] == 0].min(),
        },
        chart=Lines(gaps, low, "gap to the largest score", "weight of the lower of two", log="y"),
    )


@claim("A15", source="homework", verdict="conditional")
def attention_is_linear(trial: Trial) -> Evidence:
    """Attention is essentially a linear operation.

    Condition: The weights are held fixed: attention is linear in the values, not in its input.
    Refutation: f(c X) = c f(X) for the layer, or a difference with frozen weights
    """
    layer = MultiHeadAttention(8, 1, qkv_bias=False).double()
    x, y = trial.normal(20, 6, 8), trial.normal(20, 6, 8)
    w = attention_weights(layer.project_query(x), layer.project_kv(x)[0])

    def frozen(z: Tensor) -> Tensor:
        return layer.to_out((w @ layer.project_kv(z)[1])[:, 0])

    factors = torch.logspace(-1, 1, 21, dtype=torch.float64)
    scaled, added = {}, {}
    for name, f in {"attention": layer, "weights frozen": frozen}.items():
        errors = torch.stack([(f(c * x) - c * f(x)).norm(dim=(-2, -1)) / c for c in factors])
        scaled[name] = errors.detach().mean(-1)
        added[name] = (f(x + y) - f(x) - f(y)).norm(dim=(-2, -1)).detach()
    linear = {name: max(scaled[name].max(), added[name].max()) < 1e-10 for name in scaled}
    return Evidence(
        holds=all(linear.values()),
        holds_if=linear["weights frozen"],
        measures={"|f(X+Y) − f(X) − f(Y)|": added},
        chart=Lines(factors, scaled, "factor c of the input", "|f(cX) − c f(X)| / c", log="x"),
    )


def same_order(x: Tensor, y: Tensor) -> Tensor:
    """1 per pair of entries of the last axis that x and y order alike."""
    first, second = torch.triu_indices(x.shape[-1], x.shape[-1], 1)
    dx, dy = (z[..., first] - z[..., second] for z in (x, y))
    return (dx.sign() == dy.sign()).double()


def fit_scores(x: Tensor, target: Tensor, *projections: Tensor, steps: int = 80) -> Tensor:
    """Attention maps after fitting the projections, one for both or W_Q and W_K, by Adam."""
    weights = [p.clone().requires_grad_() for p in projections]
    optimizer = torch.optim.Adam(weights, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        _cross_entropy(attention_weights(x @ weights[0], x @ weights[-1]), target).sum().backward()
        optimizer.step()
    return attention_weights(x @ weights[0], x @ weights[-1]).detach()


def _cross_entropy(w: Tensor, target: Tensor) -> Tensor:
    """Mean over the queries of −log of the weight of each query's target."""
    return -w[..., torch.arange(len(target)), target].log().mean(-1)
