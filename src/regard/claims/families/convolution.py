"""Claims about attention as an identity, a permutation or a convolution."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.claims.charts import Bars, Lines
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.measurements import to_tensor
from regard.nn import MultiHeadAttention
from regard.ops import Local, Toeplitz, attend, attention_weights, sinusoidal, softargmax
from regard.work import solve


@claim("G1", source="homework", verdict="true")
def identity_layer(trial: Trial) -> Evidence:
    """If the weight matrix is the identity, and the output projection undoes the value projection,
    attention returns its input.

    Refutation: an output that differs from the input while every token attends to itself alone
    Remark: Unmasked softmax reaches it only in the limit of a large scale β.
    """
    betas = [1.0, 3.0, 10.0, 30.0, 100.0]

    def draw() -> dict[str, Tensor]:
        x, layer = F.normalize(trial.normal(1, 6, 16), dim=-1), _inverting_layer(trial)
        exact = (layer(x, mask=Local(0)) - x).norm()
        layer.to_q.weight.data = layer.to_k.weight.data = torch.eye(16, dtype=torch.float64)
        errors = torch.stack([(_scaled(layer, beta)(x) - x).norm() for beta in betas])
        return {"exact": exact, "unmasked": errors}

    errors = trial.repeat(20, draw)
    largest, typical = errors["exact"].max(), errors["unmasked"].mean(0)
    curves = {"unmasked": typical, "A = I by a mask": largest.expand(5)}
    return Evidence(
        holds=largest < 1e-9,
        measures={
            "largest error where A = I": largest,
            "mean error of unmasked attention, β = 1": typical[0],
            "mean error of unmasked attention, β = 100": typical[-1],
        },
        chart=Lines(betas, curves, "scale β", "‖H − X‖", log="xy"),
    )


@claim("G2", source="homework", verdict="false")
def orthonormal_keys(trial: Trial) -> Evidence:
    """With orthonormal keys and queries equal to the keys, the scores are the identity matrix, so
    attention is the identity.

    Correction: Softmax of the identity matrix is not the identity: its diagonal is e^β / (e^β + n −
        1), which reaches 1 only as β grows.
    Refutation: weights equal to the identity matrix at scales of 0.5 to 8
    """
    betas, sizes = torch.tensor([0.5, 1, 2, 3, 4, 5, 6, 8], dtype=torch.float64), [2, 4, 16, 64]
    diagonals, errors = {}, []
    for n in sizes:
        keys = torch.linalg.qr(trial.normal(n, n)).Q
        maps = [attention_weights(keys, keys, scale=float(beta)) for beta in betas]
        diagonals[n] = torch.stack([m.diagonal().min() for m in maps])
        errors.append((diagonals[n] - betas.exp() / (betas.exp() + n - 1)).abs().max())
    distance = 1 - torch.stack(list(diagonals.values()))
    curves = {f"{n} tokens": y for n, y in diagonals.items()}
    return Evidence(
        holds=distance.max() < 1e-6,
        corrected=max(errors) < 1e-12 and (distance.diff() < 0).all(),
        measures={
            "weight on itself, n = 4, β = 1": diagonals[4][1],
            "weight on itself, n = 64, β = 1": diagonals[64][1],
            "largest difference from the formula": max(errors),
        },
        chart=Lines(betas, curves, "scale β", "weight on itself"),
    )


@claim("G3", source="homework", verdict="conditional")
def most_similar_to_itself(trial: Trial) -> Evidence:
    """A token is most similar to itself, so sharp self-attention returns its input.

    Condition: All tokens have the same norm, no two are equal, and β is large.
    Refutation: unit vectors that attend to others at β = 10,000, or a longer token that takes no
        weight from its neighbours
    """
    ratios, beta = [1.0, 1.25, 1.5, 2.0, 3.0], 1e4
    x, shares = F.normalize(trial.normal(100, 8, 4), dim=-1), []
    for ratio in ratios:
        tokens = x.clone()
        tokens[:, 0] *= ratio
        top = attention_weights(tokens, tokens, scale=beta).argmax(-1)
        shares.append((top == torch.arange(8)).double().mean())
    twins = torch.cat([x[0, :1], x[0]])
    shared = attention_weights(twins, twins, scale=beta)[0, :2]
    curves = {"tokens that attend to themselves": shares}
    return Evidence(
        holds=min(shares) == 1 and shared[0] > 0.99,
        holds_if=shares[0] == 1,
        measures={
            "tokens that attend to themselves, equal norms": shares[0],
            "the same, one token of 8 three times as long": shares[-1],
            "weight of one of two equal tokens on itself": shared[0],
        },
        chart=Lines(ratios, curves, "norm of one token, others 1"),
    )


@claim("G4", source="homework", verdict="false")
def one_key_per_query(trial: Trial) -> Evidence:
    """If every query puts all its weight on one key, the weight matrix is a permutation.

    Correction: It is a gather: several queries may share a key. Of all such matrices, n!/nⁿ are
        permutations.
    Refutation: hard attention maps in which every key is used exactly once
    """
    sizes, draws = [2, 3, 4, 5, 6], 4000
    shares, expected, errors = [], [], []
    for n in sizes:
        weights, p = softargmax(trial.normal(draws, n, n), beta=math.inf), math.factorial(n) / n**n
        one_hot = (weights.amax(-1) == 1).all()
        shares.append((weights.sum(-2) == 1).all(-1).double().mean().item() if one_hot else 0.0)
        expected.append(p)
        errors.append(abs(shares[-1] - p) / math.sqrt(p * (1 - p) / draws))
    curves = {"drawn": shares, "n!/nⁿ": expected}
    return Evidence(
        holds=min(shares) == 1,
        corrected=max(errors) < 5,
        measures={
            "share of permutations, n = 3": shares[1],
            "n!/nⁿ, n = 3": expected[1],
            "largest difference, in standard errors": max(errors),
        },
        chart=Lines(sizes, curves, "tokens n", "share that are permutations"),
    )


@claim("G5", source="homework", verdict="true")
def index_of_weight(trial: Trial) -> Evidence:
    """With tokens as columns, a weight a₂₁ = 1 means that output 1 is value 2.

    Refutation: a hard attention map with a_ji = 1 whose output i is not value j
    Remark: With tokens as rows the indices swap: a₂₁ = 1 then means that output 2 is value 1.
    """
    right = {"output i is value j": [], "output j is value i": []}
    for _ in range(5):
        q, k, v = (trial.integers(9, 2, 4).sub(4).add(trial.uniform(2, 4)) for _ in range(3))
        given = {"Q": q.tolist(), "K": k.tolist(), "V": v.tolist()}
        problem = {"family": "attention", "convention": "columns", "scale": "inf", "given": given}
        solution = solve(problem)
        a, h, v = (to_tensor(solution[name]) for name in "AHV")
        for j, i in (a == 1).nonzero().tolist():
            right["output i is value j"].append(float(torch.allclose(h[:, i], v[:, j])))
            right["output j is value i"].append(float(torch.allclose(h[:, j], v[:, i])))
    shares = {name: sum(x) / len(x) for name, x in right.items()}
    return Evidence(
        holds=shares["output i is value j"] == 1, measures={"share of weights a_ji = 1": shares}
    )


@claim("G6", source="homework", verdict="true")
def diagonal_is_pointwise(trial: Trial) -> Evidence:
    """If every token attends to itself alone, attention is a convolution over the sequence.

    Refutation: a difference from a convolution with kernel W_O W_V
    Remark: One of width 1, that is, a linear layer per position. Unmasked softmax at a finite scale
        leaves some weight on every other token.
    """

    def draw() -> dict[str, Tensor]:
        x, layer = trial.normal(1, 7, 8), trial.build(lambda: MultiHeadAttention(8, 1))
        convolved = F.conv1d(x.mT, (layer.to_out.weight @ layer.to_v.weight)[:, :, None])
        w = attention_weights(layer.project_query(x), layer.project_kv(x)[0])
        return {
            "diagonal weights": (layer(x, mask=Local(0)).mT - convolved).abs().max(),
            "unmasked": (layer(x).mT - convolved).abs().max(),
            "leaked": 1 - w.diagonal(dim1=-2, dim2=-1).max(),
        }

    pointwise, wider, leaked = trial.repeat(20, draw).values()
    gaps = {"diagonal weights": pointwise.max(), "unmasked": wider.min()}
    return Evidence(
        holds=pointwise.max() < 1e-10 and leaked.min() > 0,
        measures={
            "|attention − convolution of width 1|": gaps,
            "least weight on other tokens, unmasked": leaked.min(),
        },
    )


@claim("G7", source="homework", verdict="conditional")
def quarter_half_quarter(trial: Trial) -> Evidence:
    """Attention weights of ¼, ½, ¼ on a token and its neighbours act as a convolution of width 3.

    Condition: The scores depend on the distance alone, and the token is not at an end, where
        softmax renormalises to ⅔ and ⅓. The taps are never negative and sum to 1.
    Refutation: a difference from the convolution inside the sequence, or none at its ends
    """
    taps = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64)
    terms = {"bias": Toeplitz(taps.log()), "mask": Local(1)}

    def draw() -> dict[str, Tensor]:
        q, k, v = trial.normal(3, 12, 4)
        target = F.conv1d(v.mT[:, None], taps[:, None], padding=1)[:, 0].mT
        by_distance, by_content = (
            (attend(x, k, v, **terms)[0] - target).abs().amax(-1) for x in (0 * q, q)
        )
        return {
            "inside": by_distance[1:-1].max(),
            "at the ends": by_distance[[0, -1]].max(),
            "inside, scores from content": by_content[1:-1].max(),
        }

    gaps = trial.repeat(20, draw)
    largest = {name: x.max() for name, x in gaps.items()}
    return Evidence(
        holds=max(largest.values()) < 1e-10,
        holds_if=largest["inside"] < 1e-10 and gaps["at the ends"].min() > 1e-3,
        measures={"|attention − convolution|": largest},
    )


@claim("G8", source="homework", verdict="conditional")
def any_convolution(trial: Trial) -> Evidence:
    """Attention can express any convolution.

    Condition: There is one head per tap. One head shares a value projection and non-negative
        weights among all taps: it misses even a difference of neighbours, which takes two.
    Refutation: one head that fits the kernel (1, 0, −1), or as many heads as taps that do not fit a
        kernel
    """
    counts, d = {"1 head": 1, "2 heads": 2, "3 heads": 3}, 3
    signed = torch.tensor([1.0, 0, -1], dtype=torch.float64)[:, None, None] * torch.eye(d)
    kernels = {"difference (1, 0, −1)": signed, "a matrix per tap": trial.normal(3, d, d)}
    residuals = {
        name: {n: _fit_convolution(trial, kernel, heads) for n, heads in counts.items()}
        for name, kernel in kernels.items()
    }
    one, _, three = zip(*(x.values() for x in residuals.values()), strict=True)
    bars = {n: {name: x[n] + 1e-12 for name, x in residuals.items()} for n in counts}
    return Evidence(
        holds=max(one) < 1e-4,
        holds_if=max(three) < 1e-4,
        measures={f"residual of {name}": x for name, x in residuals.items()},
        chart=Bars(bars, "relative residual of the best fit", log="y"),
    )


@claim("G9", source="homework", verdict="false")
def band_of_thirds(trial: Trial) -> Evidence:
    """Weights of ⅓ on a token and its two neighbours, along the whole sequence, come out of a
    softmax.

    Correction: At both ends such rows sum to ⅔, while softmax rows sum to 1: it gives ½, ½ there.
        The layer is average pooling of width 3.
    Refutation: rows of the band that all sum to 1
    """
    n, zero = 6, torch.zeros(6, 1, dtype=torch.float64)
    thirds = torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)
    band = F.conv1d(torch.eye(n, dtype=torch.float64)[:, None], thirds, padding=1)[:, 0]
    softmax, values = attention_weights(zero, zero, mask=Local(1)), trial.normal(1, 4, n)
    pooled = F.avg_pool1d(values, 3, 1, padding=1, count_include_pad=False)
    pooling_error = (pooled.mT - softmax @ values.mT).abs().max()
    inside, sums = (band - softmax)[1:-1].abs().max(), band.sum(-1)
    return Evidence(
        holds=(sums - 1).abs().max() < 1e-12,
        corrected=max(inside, pooling_error) < 1e-12 and (softmax[0, :2] - 0.5).abs().max() < 1e-12,
        measures={
            "row sum of the band at the ends": sums[0],
            "largest difference from softmax inside": inside,
            "largest difference of softmax from average pooling": pooling_error,
        },
        chart=Bars({f"row {i + 1}": x for i, x in enumerate(sums)}, "sum of the weights of ⅓"),
    )


@claim("G10", source="homework", verdict="conditional")
def band_from_sinusoids(trial: Trial) -> Evidence:
    """Sinusoidal positions alone, used as queries and keys, give the weights ¼, ½, ¼ of a
    convolution.

    Condition: A tolerance of some hundredths is allowed: no scale gives them exactly.
    Refutation: a scale at which the weights are exact to 0.001, or none that is within 0.07
    """
    codes = sinusoidal(torch.arange(65), 64)
    betas = torch.linspace(0.1, 1.6, 61, dtype=torch.float64)
    rows = [attention_weights(codes, codes, scale=float(beta))[32] for beta in betas]
    near = torch.stack(rows)[:, 30:35]
    target = torch.tensor([0, 0.25, 0.5, 0.25, 0], dtype=torch.float64)
    errors, mass = (near - target).abs().amax(-1), near[:, 1:4].sum(-1)
    best = int(errors.argmin())
    curves = {"itself": near[:, 2], "each neighbour": near[:, 1], "all three": mass}
    return Evidence(
        holds=errors.min() < 1e-3,
        holds_if=errors.min() < 0.07 and mass[best] > 0.8,
        measures={
            "best scale β": betas[best],
            "largest difference from ¼, ½, ¼ there": errors[best],
            "weight on the three positions there": mass[best],
        },
        chart=Lines(betas, curves, "scale β", "weight"),
    )


def _inverting_layer(trial: Trial) -> MultiHeadAttention:
    """One head whose output projection is the inverse of its value projection."""
    layer = trial.build(lambda: MultiHeadAttention(16, 1, qkv_bias=False))
    rotation = torch.linalg.qr(trial.normal(16, 16)).Q
    layer.to_v.weight.data, layer.to_out.weight.data = rotation, rotation.mT
    return layer


def _scaled(layer: MultiHeadAttention, scale: float) -> MultiHeadAttention:
    layer.scale = scale
    return layer


def _fit_convolution(trial: Trial, kernel: Tensor, heads: int) -> float:
    """Relative residual of position-only heads that are fitted to a convolution of width 3."""
    x = F.pad(trial.normal(24, kernel.shape[-1]), (0, 0, 1, 1))  # zeros, as the convolution pads
    target = F.conv1d(x.mT, kernel.permute(1, 2, 0), padding=1).mT
    return fit_position_heads(trial, x, target, heads)


def fit_position_heads(
    trial: Trial, x: Tensor, target: Tensor, heads: int, starts: int = 2
) -> float:
    """Relative squared error of the best heads whose weights depend on distances −1, 0, 1 alone.

    The value and output projections of a head act as one matrix, which is solved for.
    """
    values = x.expand(heads, -1, -1)
    zero = torch.zeros(heads, len(x), 1, dtype=torch.float64)
    target = target[1:-1]

    def residual(table: Tensor) -> Tensor:
        mixed, _ = attend(zero, zero, values, mask=Local(1), bias=Toeplitz(table))
        mixed = mixed[:, 1:-1].transpose(0, 1).flatten(1)
        fitted = mixed @ torch.linalg.lstsq(mixed, target).solution
        return (fitted - target).square().sum() / target.square().sum()

    return min(_minimise(residual, trial.normal(heads, 3)) for _ in range(starts))


def _minimise(loss: Callable[[Tensor], Tensor], x: Tensor, steps: int = 30) -> float:
    """The loss after L-BFGS from x."""
    x = x.requires_grad_()
    optimizer = torch.optim.LBFGS([x], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        return value

    optimizer.step(closure)
    return float(loss(x).detach())
