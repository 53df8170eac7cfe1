"""Claims about perturbed keys, queries and tokens: which outputs move, and by how much."""

from typing import Literal

import torch
from torch import Tensor

from regard.claims.charts import Bars, Lines, Maps, Points
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.measurements import log_slope
from regard.errors import ShapeError
from regard.inspection import jitter_key_effect, jitter_query_effect, make_site
from regard.nn import MultiHeadAttention
from regard.ops import attend, attention_weights, dot
from regard.work import SolutionBuilder

DRAWS, QUERIES, KEYS, DIM = 100, 5, 6, 4
MOVED = 1e-12  # an output that changes by more has moved; rounding is below 1e-14
COUNT = f"outputs that change, of {QUERIES}"


@claim("C1", source="homework", verdict="true")
def query_noise_moves_one_output(trial: Trial) -> Evidence:
    """Noise in one query changes one output, that of this query.

    Refutation: another output that changes, or its own that does not
    Remark: Queries, keys and values are given separately here; in self-attention a token is all
        three (C2).
    """
    q, k, v = draw_qkv(trial)
    noisy = q.clone()
    noisy[:, 2] += 0.1 * trial.normal(DRAWS, DIM)
    change = (attend(noisy, k, v)[0] - attend(q, k, v)[0]).norm(dim=-1)
    moved = change > MOVED
    return Evidence(
        holds=moved[:, 2].all() and moved.sum() == DRAWS,
        measures={COUNT: moved.double().sum(-1)},
        chart=per_output(change, "query 2"),
    )


@claim("C2", source="homework", verdict="false")
def token_noise_moves_all_outputs(trial: Trial) -> Evidence:
    """In self-attention, noise in one token changes the output of this token only.

    Correction: It changes all outputs: the token is also a key and a value for all the others.
    Refutation: an output of another token that does not change
    """
    layer = MultiHeadAttention(8, 1).double().requires_grad_(False)
    x = trial.normal(DRAWS, QUERIES, 8)
    noisy = x.clone()
    noisy[:, 2] += 0.1 * trial.normal(DRAWS, 8)
    change = (layer(noisy) - layer(x)).norm(dim=-1)
    moved = change > MOVED
    return Evidence(
        holds=moved.sum() == DRAWS,
        corrected=moved.all(),
        measures={COUNT: moved.double().sum(-1)},
        chart=per_output(change, "token 2"),
    )


@claim("C3", source="homework", verdict="true")
def key_noise_moves_all_outputs(trial: Trial) -> Evidence:
    """Noise in one key changes the outputs of all queries.

    Refutation: a query, not orthogonal to the noise, whose output stays
    Remark: Except for a query orthogonal to the noise, or one that gives the key weight 0 or 1.
    """
    q, k, v = draw_qkv(trial)
    noise = 0.1 * trial.normal(DRAWS, 1, DIM)
    noisy = k.clone()
    noisy[:, 3:4] += noise
    along = noise / noise.norm(dim=-1, keepdim=True)
    orthogonal = q - dot(q, along) * along
    change, still = (
        (attend(x, noisy, v)[0] - attend(x, k, v)[0]).norm(dim=-1) for x in (q, orthogonal)
    )
    moved = change > MOVED
    return Evidence(
        holds=moved.all(),
        measures={
            COUNT: moved.double().sum(-1),
            "largest |Δh| of queries orthogonal to the noise": still.max(),
        },
        chart=per_output(change, "key 3"),
    )


@claim("C4", source="homework", verdict="false")
def key_noise_moves_one_row(trial: Trial) -> Evidence:
    """Noise in one key changes only the attention weights of that key.

    Correction: Only the scores of that key change; the weights of all keys do, because each query
        divides by a sum that contains the changed score.
    Refutation: weights of the other keys that stay
    """
    q, k, _ = draw_qkv(trial)
    noisy = k.clone()
    noisy[:, 3] += 0.5 * trial.normal(DRAWS, DIM)
    scores = (dot(q, noisy) - dot(q, k)).abs()
    weights = (attention_weights(q, noisy) - attention_weights(q, k)).abs()
    touched = [(x > MOVED).any(-2).double().sum(-1) for x in (scores, weights)]
    maps = [x[0] / x[0].amax(-1, keepdim=True) for x in (scores, weights)]
    return Evidence(
        holds=touched[1].max() == 1,
        corrected=(touched[0] == 1).all() and (weights > MOVED).all(),
        measures={
            f"keys with changed scores, of {KEYS}": touched[0],
            f"keys with changed weights, of {KEYS}": touched[1],
        },
        chart=Maps({"|Δ score|, relative to its row": maps[0], "|Δ weight|, relative": maps[1]}),
    )


@claim("C5", source="homework", verdict="false")
def key_noise_moves_the_mean(trial: Trial) -> Evidence:
    """Noise of mean zero in a key does not change the expected output.

    Correction: Only to first order. To second order the mean output moves by ½ σ² β² |q|² a (1 −
        2a) (v − h), a the weight of the key.
    Refutation: a mean change whose interval contains 0 at every size of the noise
    """
    return mean_shift(trial, "key")


@claim("C6", source="homework", verdict="false")
def small_noise_moves_outputs(trial: Trial) -> Evidence:
    """A small perturbation of mean zero leaves the output unchanged.

    Correction: Each draw moves the output in proportion to the size of the noise; only the mean
        over draws moves by its square.
    Refutation: outputs that stay, or that move with another power of the size
    """
    q, k, v = draw_qkv(trial)
    sigmas, before = torch.logspace(-3, -1, 9).tolist(), attend(q, k, v)[0]
    noise = trial.normal(25, DRAWS, DIM)
    sizes = {"single draws, mean |Δh|": [], "mean over draws, |mean Δh|": []}
    for sigma in sigmas:
        noisy = k.repeat(50, 1, 1, 1)
        noisy[:, :, 2] += sigma * torch.cat([noise, -noise])  # in pairs: the first order cancels
        change = attend(q.expand(50, *q.shape), noisy, v.expand(50, *v.shape))[0] - before
        for rows, x in zip(sizes.values(), (change, change.mean(0)), strict=True):
            rows.append(x.norm(dim=-1).mean())
    single, mean = sizes.values()
    powers = [log_slope(sigmas, x) for x in (single, mean)]
    return Evidence(
        holds=max(single) < 1e-12,
        corrected=abs(powers[0] - 1) < 0.05 and abs(powers[1] - 2) < 0.1,
        measures={
            "mean |Δh| at σ = 0.1": single[-1],
            "power of σ, single draws": powers[0],
            "power of σ, mean over draws": powers[1],
        },
        chart=Lines(sigmas, sizes, "size of the noise σ", "change of the output", log="xy"),
    )


@claim("C7", source="homework", verdict="false")
def query_noise_moves_the_mean(trial: Trial) -> Evidence:
    """Noise of mean zero in a query does not change its expected output.

    Correction: Only to first order. To second order the mean output moves by ½ σ² β² Σ a_j |k_j −
        k̄|² (v_j − h), k̄ the mean of the keys under the weights a.
    Refutation: a mean change whose interval contains 0 at every size of the noise
    """
    return mean_shift(trial, "query")


@claim("C8", source="homework", verdict="conditional")
def effect_by_weight(trial: Trial) -> Evidence:
    """The effect of a perturbed key on an output is proportional to its weight a.

    Condition: The weight is small: the law is a (1 − a), largest at ½ and 0 for a key that has all
        of the weight.
    Refutation: an effect at a weight near 1 as large as a says, or one far from a (1 − a)
    """
    gaps, step = torch.linspace(-8, 8, 65).double(), 1e-4
    v = trial.normal(KEYS, 3)
    a, _ = one_key_ahead(gaps, v)
    effect = (one_key_ahead(gaps + step, v)[1] - one_key_ahead(gaps - step, v)[1]).norm(dim=-1)
    effect = effect / (2 * step) / (v[0] - v[1:].mean(0)).norm()  # per distance of the values
    ratio, law = effect / a, (effect - a * (1 - a)).abs().max()
    off, small = (ratio - 1).abs(), a < 0.02
    axes = "weight a of the key", "|∂h / ∂score|, relative"
    curves = {"a": (a, a), "a (1 − a)": (a, a * (1 - a))}
    return Evidence(
        holds=off.max() < 0.05,
        holds_if=off[small].max() < 0.05 and law < 1e-6,
        measures={
            "effect / a, weights below 0.02, smallest": ratio[small].min(),
            "effect / a, largest weight": ratio[-1],
            "largest |effect − a (1 − a)|": law,
        },
        chart=Points({"measured": (a, effect)}, *axes, curves=curves),
    )


@claim("C9", source="homework", verdict="conditional")
def sensitivity_by_beta(trial: Trial) -> Evidence:
    """The larger β, the more sensitive the output is to a perturbed score.

    Condition: β is below a peak; sensitivity is β a (1 − a), and where one key has won, it is 0.
        For two keys with a lead δ the peak is at β = 1.54 / δ.
    Refutation: sensitivity that rises at every β, or that has no single peak
    """
    betas, curves, peaks, single = torch.linspace(0.05, 8, 160).double(), {}, [], []
    for lead in (0.5, 1.0, 2.0):
        score = torch.full_like(betas, lead).requires_grad_()
        _, h = one_key_ahead(betas * score, torch.tensor([[1.0], [0.0]]).double())
        curve = torch.autograd.grad(h.sum(), score)[0]
        rising, peak = curve.diff() > 0, int(curve.argmax())
        single.append(bool(rising[:peak].all() and not rising[peak:].any()))
        peaks.append(float(betas[peak]) * lead)
        curves[f"lead {lead:g}"] = curve
    return Evidence(
        holds=all(curve.diff().min() > 0 for curve in curves.values()),
        holds_if=all(single) and all(abs(peak - 1.543) < 0.15 for peak in peaks),
        measures={
            "β · lead at the peak, lead 1": peaks[1],
            "sensitivity at the peak, lead 1": curves["lead 1"].max(),
            "sensitivity at β = 8, lead 1": curves["lead 1"][-1],
        },
        chart=Lines(betas, curves, "β", "|∂h / ∂score|"),
    )


@claim("C14", source="homework", verdict="false")
def column_product(trial: Trial) -> Evidence:
    """With tokens as columns, the output of attention is softmax(KᵀQ) V.

    Correction: It is V softmax(KᵀQ): V is t × m and the weights are m × n.
    Refutation: sizes n ≠ t for which softmax(KᵀQ) V can be multiplied
    """
    right = {"A V": 0, "V A": 0}
    suggested, sizes = 0, (trial.integers(5, 12, 3) + 1).tolist()
    sizes = [(n, m, t) for n, m, t in sizes if n != t]
    for n, m, t in sizes:
        q, k, v = trial.normal(n, 2), trial.normal(m, 2), trial.normal(m, t)
        a = attention_weights(q, k)
        builder = SolutionBuilder("attention", {"A": a.T.tolist(), "V": v.T.tolist()})
        try:
            builder.add_step("H", "product", "A", "V", title="the output")
            right["A V"] += 1
        except ShapeError as error:
            suggested += "try V A" in str(error)
        out = builder.values[builder.add_step("VA", "product", "V", "A", title="the output")]
        difference = torch.tensor(out.tolist(), dtype=torch.float64).T - attend(q, k, v)[0]
        right["V A"] += bool(difference.abs().max() < 1e-9)
    shares = {name: count / len(sizes) for name, count in right.items()}
    return Evidence(
        holds=right["A V"] == len(sizes),
        corrected=right["A V"] == 0 and suggested == right["V A"] == len(sizes),
        measures={"share of sizes (n ≠ t) that give the output": shares},
    )


def draw_qkv(trial: Trial, draws: int = DRAWS, queries: int = QUERIES) -> tuple[Tensor, ...]:
    """Random queries, keys and values."""
    sizes = (queries, DIM), (KEYS, DIM), (KEYS, 3)
    return tuple(trial.normal(draws, *size) for size in sizes)


def per_output(change: Tensor, noisy: str) -> Bars:
    """Mean size of the change of each output."""
    means = {f"output {i}": x for i, x in enumerate(change.mean(0))}
    return Bars(means, f"mean |Δh|, noise in {noisy}")


def one_key_ahead(gaps: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Weight of the first key and output, if its score is ahead of the others by each gap."""
    k = torch.cat([gaps[:, None], gaps.new_zeros(len(gaps), len(v) - 1)], -1)[..., None]
    q, v = torch.ones_like(k[:, :1]), v.expand(len(gaps), *v.shape)
    return attention_weights(q, k, scale=1.0)[:, 0, 0], attend(q, k, v, scale=1.0)[0][:, 0]


def mean_shift(trial: Trial, noisy: Literal["key", "query"]) -> Evidence:
    """Mean change of outputs under noise, by sampling, against the closed form of second order."""
    cases, sigma, draws = 20, 0.2, trial.size(2000, 40000)
    q, k, v = draw_qkv(trial, cases, 1)
    predict = jitter_key_effect if noisy == "key" else jitter_query_effect
    predicted = predict(make_site(q[:, None], k[:, None], v[:, None]), 0, sigma).mean[:, 0, 0]
    noise = sigma * trial.normal(draws, cases, 1, DIM)
    changes = []
    for signed in (noise, -noise):  # in pairs, so that the first order cancels
        q_, k_, v_ = (x.expand(draws, -1, -1, -1) for x in (q, k, v))
        if noisy == "key":
            k_ = torch.cat([k_[..., :1, :] + signed, k_[..., 1:, :]], -2)
        else:
            q_ = q_ + signed
        changes.append((attend(q_, k_, v_)[0] - attend(q, k, v)[0])[..., 0, :])
    change = (changes[0] + changes[1]) / 2
    shares = (change * predicted).sum((-2, -1)) / predicted.square().sum()
    ratio = Measure.mean("mean change / prediction", shares)
    points = {f"{cases} random cases, 3 features": (predicted.flatten(), change.mean(0).flatten())}
    equal = {"equal": (predicted.aminmax(), predicted.aminmax())}
    return Evidence(
        holds=not ratio.above(0),
        corrected=ratio.above(0) and abs(ratio.value - 1) < 0.2,
        measures={
            ratio.name: ratio,
            "|mean Δh| at σ = 0.2": change.mean(0).norm(dim=-1).mean(),
            "mean |Δh| of single draws": changes[0].norm(dim=-1).mean(),
        },
        chart=Points(points, "predicted mean change", "mean change over draws", curves=equal),
    )
