"""Claims about the scale of scores: why attention divides by √d."""

from functools import cache, partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from regard.claims.charts import Lines, Points
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.families.temperature import Lookup, draw_items, lookup_loss, new_items
from regard.claims.measurements import log_slope, train_model
from regard.inspection import jitter_query_effect, make_site
from regard.ops import attend, score_moments, softargmax, survey

WIDTHS = [4, 16, 64]
SIGMAS = (0.5, 1.0, 2.0)
KEYS = 32
RAW, SCALED = "q · k", "q · k / √d"


@claim("D1", source="exam", verdict="true")
def mean_of_scores(trial: Trial) -> Evidence:
    """The mean of q · k is μᵀμ, so 0 for centred features.

    Refutation: a mean of many draws more than five standard errors from μᵀμ
    Remark: For independent q and k with the same mean μ.
    """
    predicted, means, errors = [], [], []
    for dim, sigma, size in product(WIDTHS, SIGMAS, (0.0, 0.5)):
        mean = size * trial.normal(dim)
        scores = draw_scores(trial, mean, sigma)
        predicted.append(score_moments(mean, sigma)[0])
        means.append(scores.mean())
        errors.append(scores.std() / len(scores) ** 0.5)
    predicted, means = torch.stack(predicted), torch.stack(means)
    z = ((means - predicted) / torch.stack(errors)).abs()
    ends = [0, predicted.max()]
    points = {"18 settings of d, μ, σ": (predicted, means)}
    return Evidence(
        holds=z.max() < 5,
        measures={
            "largest difference, in standard errors": z.max(),
            "share of 95% intervals that contain μᵀμ": (z < 1.96).double().mean(),
        },
        chart=Points(points, "μᵀμ", "mean of q · k", curves={"equal": (ends, ends)}),
    )


@claim("D2", source="exam", verdict="conditional")
def variance_of_scores(trial: Trial) -> Evidence:
    """With features of mean 0 and variance 1, q · k has variance d, and β = 1/√d brings it to 1.

    Condition: q and k are independent; a vector with itself has mean d and variance 2d.
    Refutation: a variance of independent q and k that is not d, or of q = k that is
    """
    widths = [1, 4, 16, 64, 256]
    variance = {"independent": [], "q = k": [], "independent, β = 1/√d": []}
    for dim in widths:
        q, k = trial.normal(4000, dim), trial.normal(4000, dim)
        scores = (q * k).sum(-1), (q * q).sum(-1), (q * k).sum(-1) / dim**0.5
        for row, x in zip(variance.values(), scores, strict=True):
            row.append(x.var())
    independent, itself, _ = (torch.stack(x) / torch.tensor(widths) for x in variance.values())
    as_stated = [(x - 1).abs().max() < 0.4 for x in (independent, itself)]
    power = log_slope(widths, variance["independent"])
    return Evidence(
        holds=all(as_stated),
        holds_if=as_stated[0] and abs(power - 1) < 0.1,
        measures={
            "power of d, independent": power,
            "variance / d, independent, d = 256": independent[-1],
            "variance / d, q = k, d = 256": itself[-1],
        },
        chart=Lines(widths, variance, "d", "variance of the score", log="xy"),
    )


@claim("D3", source="exercises", verdict="false")
def variance_with_means(trial: Trial) -> Evidence:
    """The variance of q · k is 2 d σ² μᵀμ + d σ⁴.

    Correction: It is 2 σ² μᵀμ + d σ⁴: the sum over features is already in μᵀμ.
    Refutation: variances of draws within 20% of the statement and not of the correction
    """
    drawn, formulas = [], {"as stated": [], "corrected": []}
    for dim, sigma in product(WIDTHS, SIGMAS):
        mean = 0.5 * trial.normal(dim)
        drawn.append(draw_scores(trial, mean, sigma).var())
        stated = 2 * dim * sigma**2 * mean.square().sum() + dim * sigma**4
        formulas["as stated"].append(stated)
        formulas["corrected"].append(score_moments(mean, sigma)[1])
    variance, formulas = torch.stack(drawn), {k: torch.stack(x) for k, x in formulas.items()}
    errors = {name: (x / variance - 1).abs().max() for name, x in formulas.items()}
    points = {name: (variance, x) for name, x in formulas.items()}
    equal = {"equal": (variance.aminmax(), variance.aminmax())}
    return Evidence(
        holds=errors["as stated"] < 0.2,
        corrected=errors["corrected"] < 0.2 and errors["as stated"] > 1,
        measures={"largest relative error": errors},
        chart=Points(points, "variance of 4000 draws", "formula", log="xy", curves=equal),
    )


@claim("D4", source="exercises", verdict="false")
def mean_of_scaled_scores(trial: Trial) -> Evidence:
    """Dividing by √d makes the mean of the scores grow linearly with d.

    Correction: For features of constant mean, q · k grows linearly with d without division; divided
        by √d it grows as √d.
    Refutation: a mean of q · k / √d with power 1 of d
    """
    widths = [4, 16, 64, 256]
    raw = [draw_scores(trial, torch.full((dim,), 0.5).double(), 1.0).mean() for dim in widths]
    means = {RAW: torch.stack(raw), SCALED: torch.stack(raw) / torch.tensor(widths).sqrt()}
    powers = {name: log_slope(widths, x) for name, x in means.items()}
    return Evidence(
        holds=abs(powers[SCALED] - 1) < 0.1,
        corrected=abs(powers[SCALED] - 0.5) < 0.1 and abs(powers[RAW] - 1) < 0.1,
        measures={f"power of d, mean of {name}": x for name, x in powers.items()},
        chart=Lines(widths, means, "d", "mean of the score", log="xy"),
    )


@claim("D5", source="exercises", verdict="conditional")
def scaled_variance(trial: Trial) -> Evidence:
    """Dividing by √d normalises the variance of the scores to 1, whatever d.

    Condition: The features have mean 0 and variance 1. With variance σ² it becomes σ⁴, so the
        divisor is σ² √d; with a mean it also has a part from μᵀμ.
    Refutation: a variance other than 1 for standardised features, or 1 for the others
    """
    settings = {"μ = 0, σ = 1": (0.0, 1.0), "μ = 0, σ = ½": (0.0, 0.5), "μ = 2, σ = 1": (2.0, 1.0)}

    def variance(d: int, mean: float, sigma: float) -> Tensor:
        return (draw_scores(trial, torch.full((d,), mean).double(), sigma) / d**0.5).var()

    drawn = {name: [variance(d, *x) for d in WIDTHS] for name, x in settings.items()}
    standard, half, shifted = (torch.stack(x) for x in drawn.values())
    one = [(x - 1).abs().max() < 0.25 for x in (standard, half, shifted)]
    ends = {name: {"d = 4": x[0], "d = 64": x[-1]} for name, x in drawn.items()}
    return Evidence(
        holds=all(one),
        holds_if=one[0] and (half - 0.5**4).abs().max() < 0.02 and shifted.min() > 4,
        measures={"variance of q · k / √d": ends},
    )


@claim("D7", source="exam", verdict="true")
def softmax_saturates(trial: Trial) -> Evidence:
    """Without the division by √d, softmax saturates as d grows.

    Refutation: peak weights that do not grow with d, or that grow with division as well
    Remark: For random queries and keys; trained ones can have any size.
    """
    widths = [4, 16, 64, 256, 1024]
    share, entropy = {RAW: [], SCALED: []}, []
    for dim in widths:
        q, k = trial.normal(400, dim), trial.normal(KEYS, dim)
        for name, scale in ((RAW, 1.0), (SCALED, dim**-0.5)):
            lse = attend(q, k, k, scale=scale)[1]
            rows = survey(q, k, lse, scale=scale, statistics=["peak", "entropy"])
            share[name].append((rows.peak > 0.99).double().mean())
        entropy.append(rows.entropy.mean())
    raw, scaled = (torch.stack(x) for x in share.values())
    return Evidence(
        holds=raw[-1] > 0.5 and raw.diff().min() >= 0 and scaled.max() < 0.01,
        measures={
            "share of queries with a weight above 0.99, d = 1024": raw[-1],
            "the same with division by √d": scaled[-1],
            "entropy with division, smallest over d (nats)": min(entropy),
            "entropy with division, largest over d (nats)": max(entropy),
        },
        chart=Lines(widths, share, "d", "queries with a weight > 0.99", log="x"),
    )


@claim("D8", source="exam", verdict="conditional", study="gradients")
def gradients_vanish(trial: Trial) -> Evidence:
    """Without the division by √d, gradients through softmax vanish as d grows.

    Condition: It holds for the typical (median) query. The mean over queries does not fall: the few
        whose best keys nearly tie have gradients that grow with √d.
    Refutation: a median that does not fall, or a mean that falls with it
    """
    raw, scaled = gradient_sizes(trial.seed, trial.full)
    fall, mean, level = (x[-1] / x[0] for x in (raw.median, raw.mean, scaled.median))
    curves = {"median": raw.median, "mean": raw.mean, "median with 1/√d": scaled.median}
    return Evidence(
        holds=fall < 0.4 and mean < 0.5,
        holds_if=fall < 0.4 and 0.7 < level < 1.4,
        measures={
            "median |∂h/∂q| at d = 512, relative to d = 8": fall,
            "mean, relative to d = 8": mean,
            "median with division, relative to d = 8": level,
        },
        chart=Lines(raw.widths, curves, "d", "|∂h/∂q|", log="xy"),
    )


@claim("D9", source="exercises", verdict="false", study="gradients")
def gradients_explode(trial: Trial) -> Evidence:
    """Without the division by √d, gradients through softmax explode as d grows.

    Correction: The typical gradient vanishes, and the mean grows far less than √d; only the
        largest, of rare queries whose best keys nearly tie, grow, about as √d.
    Refutation: a median or mean that grows with √d or faster
    """
    raw, _ = gradient_sizes(trial.seed, trial.full)
    curves = {"99th percentile": raw.top, "mean": raw.mean, "median": raw.median}
    top, mean, median = (log_slope(raw.widths, x) for x in curves.values())
    return Evidence(
        holds=min(median, mean) > 0.4,
        corrected=median < 0 and mean < 0.4 and 0.2 < top < 0.7,
        measures={"power of d": {"median": median, "mean": mean, "largest 1%": top}},
        chart=Lines(raw.widths, curves, "d", "|∂h/∂q|, not divided by √d", log="xy"),
    )


@claim("D10", source="exam", verdict="true", trained=True)
def scaling_helps_training(trial: Trial) -> Evidence:
    """Dividing by √d helps training.

    Refutation: losses without division as low as with it at a large d
    Remark: A toy lookup with projections of variance 1 per feature, trained by AdamW.
    """
    widths, steps = [16, 128, 1024], trial.size(250, 500)

    def loss(dim: int, scale: float | None, seed: int) -> float:
        build = partial(Lookup, head_dim=dim, scale=scale)
        options = {"steps": steps, "lr": 1e-2, "seed": seed, "device": trial.device}
        model = train_model(build, draw_items, lookup_loss, **options)
        return float(lookup_loss(model, new_items(seed, trial.device)).detach())

    losses = {
        name: torch.tensor([[loss(dim, scale, n) for n in trial.seeds(3, 8)] for dim in widths])
        for name, scale in ((RAW, 1.0), (SCALED, None))
    }
    ratio = (losses[RAW] / losses[SCALED])[-1].log10()
    gain = Measure.mean("log₁₀ of the ratio of losses, d = 1024", ratio)
    last = {f"loss, {name}, d = 1024": x[-1] for name, x in losses.items()}
    return Evidence(
        holds=gain.above(0),
        measures=last | {gain.name: gain},
        chart=Lines(widths, losses, "d", f"test loss after {steps} steps", log="xy"),
    )


@claim("D11", source="problem set", verdict="false")
def scaling_for_stability(trial: Trial) -> Evidence:
    """Scores are divided by √d for numerical stability.

    Correction: Overflow is cured by subtracting the largest score before exp, with or without
        division; the division is against saturation (D7).
    Refutation: a softmax with subtraction that fails without division, or one without subtraction
        that division makes safe
    """
    sizes, dim, errors = torch.logspace(0, 4, 17), 64, []
    finite = {"exp(s) / Σ": [], "exp(s / √d) / Σ": [], "exp(s − max s) / Σ": []}
    for size in sizes:
        scores = (size * trial.normal(200, 16)).float()
        w = softargmax(scores)
        errors.append((w - softargmax(scores.double())).abs().max())
        exps = scores.exp(), (scores / dim**0.5).exp()
        plain, divided = (x / x.sum(-1, keepdim=True) for x in exps)
        for row, x in zip(finite.values(), (plain, divided, w), strict=True):
            row.append(x.isfinite().all(-1).double().mean())
    plain, divided, shifted = finite.values()
    return Evidence(
        holds=max(errors) > 1e-5 and min(divided) == 1,
        corrected=min(shifted) == 1
        and max(errors) < 1e-5
        and divided[-1] < 0.5
        and plain[-1] < 0.5,
        measures={
            "largest error with subtraction, not divided, float32": max(errors),
            "finite rows without subtraction, divided, scores of 10⁴": divided[-1],
        },
        chart=Lines(sizes, finite, "size of the scores", "finite rows, float32", log="x"),
    )


class GradientSizes(NamedTuple):
    """Median, mean and 99th percentile of |∂h/∂q| over queries, per width d."""

    widths: list[int]
    median: Tensor
    mean: Tensor
    top: Tensor


@cache
def gradient_sizes(seed: int, full: bool) -> tuple[GradientSizes, GradientSizes]:
    """|∂h/∂q| of random queries and keys, without and with the division by √d."""
    trial, widths = Trial(seed, full=full), [8, 32, 128, 512]
    sizes = ([], [])  # without and with division
    for dim in widths:
        draws = trial.size(300, 2000)
        q, k = trial.normal(draws, 1, 1, dim), trial.normal(draws, 1, KEYS, dim)
        v = trial.normal(draws, 1, KEYS, 8)
        for rows, scale in zip(sizes, (1.0, dim**-0.5), strict=True):
            # noise of variance 1 in q moves h by |∂h/∂q| to first order, root mean square
            rows.append(jitter_query_effect(make_site(q, k, v, scale=scale), 0, 1.0).rms.flatten())
    raw, scaled = (
        GradientSizes(widths, x.median(-1).values, x.mean(-1), x.quantile(0.99, -1))
        for x in map(torch.stack, sizes)
    )
    return raw, scaled


def draw_scores(trial: Trial, mean: Tensor, sigma: float) -> Tensor:
    """q · k of independent q and k around the same mean, 4000 draws."""
    q, k = (mean + sigma * trial.normal(4000, len(mean)) for _ in range(2))
    return (q * k).sum(-1)
