"""Claims about a key that is multiplied by a factor."""

import torch
from torch import Tensor

from regard.claims.charts import Lines
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.families.perturbation import DIM, KEYS, QUERIES, draw_qkv
from regard.claims.measurements import log_slope
from regard.inspection import make_site, scale_key_effect
from regard.ops import attend, attention_weights, dot


@claim("C10", source="homework", verdict="false")
def scaled_key_by_sign(trial: Trial) -> Evidence:
    """Multiplying a key by α > 1 raises its weight for every query.

    Correction: It raises the weight where k · q > 0, lowers it where k · q < 0, and keeps it where
        they are orthogonal.
    Refutation: a weight that rises although k · q < 0, or falls although k · q > 0
    """
    q, k = trial.normal(2000, QUERIES, DIM), trial.normal(2000, KEYS, DIM)
    score, before = dot(q, k)[..., 0], attention_weights(q, k)[..., 0]
    alphas = torch.logspace(0, 2, 21).tolist()
    after = torch.stack([attention_weights(q, scale_first(k, a))[..., 0] for a in alphas])
    change = after - before
    broken, rises = (change * score.sign() < -1e-12).sum(), (change[-1] > 0).double().mean()
    drawn = zip(score[0].tolist(), after[:, 0].T, strict=True)
    curves = {f"k · q = {s:+.2f}": w for s, w in drawn}
    return Evidence(
        holds=rises == 1,
        corrected=broken == 0 and 0.3 < rises < 0.7,
        measures={
            "share of queries whose weight rises, α = 100": rises,
            f"cases against the sign of k · q, of {change.numel()}": broken,
        },
        chart=Lines(alphas, curves, "factor α of the key", "weight of the key", log="x"),
    )


@claim("C11", source="homework", verdict="false")
def scaled_key_limit(trial: Trial) -> Evidence:
    """As the factor of a key grows without bound, all outputs go to its value.

    Correction: Outputs of queries with k · q > 0 go to its value; those with k · q < 0 go to what
        the other keys give without it.
    Refutation: an output with k · q < 0 that goes to the value of the key
    """
    q, k, v = draw_qkv(trial)
    positive = dot(q, k)[..., 0] > 0
    alphas = torch.logspace(0, 12, 49).tolist()
    rest = attend(q, k[:, 1:], v[:, 1:])[0]
    to_value, to_rest = (
        torch.stack([(attend(q, scale_first(k, a), v)[0] - x).norm(dim=-1) for a in alphas])
        for x in (v[:, :1], rest)
    )
    last = torch.where(positive, to_value[-1], to_rest[-1])
    groups = {"k · q > 0": positive, "k · q < 0": ~positive}
    curves = {name: to_value[:17, group].median(-1).values for name, group in groups.items()}
    axes = "factor α of the key", "median |h − v| to its value"
    return Evidence(
        holds=to_value[-1].max() < 1e-6,
        corrected=last.max() < 1e-6,
        measures={
            "share of outputs at its value, α = 10¹²": (to_value[-1] < 1e-6).double().mean(),
            "largest distance from the limit by sign": last.max(),
        },
        chart=Lines(alphas[:17], curves, *axes, log="x"),
    )


@claim("C12", source="homework", verdict="conditional")
def scaled_key_moves_outputs(trial: Trial) -> Evidence:
    """Multiplying a key by α > 1 moves the outputs towards its value.

    Condition: The query has k · q > 0. The output is exactly a v + (1 − a) h', h' the output
        without the key, so it moves towards v where a rises, and away where a falls.
    Refutation: an output with k · q > 0 that moves away, or one off the line from h' to v
    """
    q, k, v = draw_qkv(trial)
    positive, value = dot(q, k)[..., 0] > 0, v[:, :1]
    rest = attend(q, k[:, 1:], v[:, 1:])[0]
    rows, off = [], []
    alphas = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]
    for alpha in alphas:
        scaled = scale_first(k, alpha)
        h, a = attend(q, scaled, v)[0], attention_weights(q, scaled)[..., :1]
        rows.append((h - value).norm(dim=-1))
        off.append((h - a * value - (1 - a) * rest).abs().max())
    distances, groups = torch.stack(rows), {"k · q > 0": positive, "k · q < 0": ~positive}
    nearer = {name: distances[:, group].diff(dim=0) < 1e-12 for name, group in groups.items()}
    curves = {name: (distances / distances[0])[:, group].mean(-1) for name, group in groups.items()}
    axes = "factor α of the key", "mean |h − v| relative to α = 1"
    return Evidence(
        holds=all(x.all() for x in nearer.values()),
        holds_if=nearer["k · q > 0"].all() and max(off) < 1e-12,
        measures={
            "share that moves nearer": {name: x.double().mean() for name, x in nearer.items()},
            "largest distance from a v + (1 − a) h'": max(off),
        },
        chart=Lines(alphas, curves, *axes),
    )


@claim("C13", source="homework", verdict="true")
def scaled_key_first_order(trial: Trial) -> Evidence:
    """To first order, multiplying a key by α changes an output by β (α − 1) s a (v − h), s being k
    · q and a the weight of the key.

    Refutation: an error that falls slower than the square of α − 1
    Remark: The source has the factors in an order in which their shapes do not match.
    """
    q, k, v = draw_qkv(trial)
    score, a, h = dot(q, k)[..., :1], attention_weights(q, k)[..., :1], attend(q, k, v)[0]
    direction = DIM**-0.5 * score * a * (v[:, :1] - h)
    excess, size = torch.logspace(-4, 0, 17).tolist(), direction.norm(dim=-1).mean()
    errors = [
        (attend(q, scale_first(k, 1 + x), v)[0] - h - x * direction).norm(dim=-1).mean()
        for x in excess
    ]
    power = log_slope(excess[:9], errors[:9])
    effect = scale_key_effect(make_site(q[:, None], k[:, None], v[:, None]), 0, 1.01)
    assert effect.first_order is not None
    same = (effect.first_order[:, 0] - 0.01 * direction).abs().max()
    curves = {"change": [x * size for x in excess], "error of the first order": errors}
    return Evidence(
        holds=abs(power - 2) < 0.05 and same < 1e-12,
        measures={
            "power of α − 1 in the error": power,
            "error / (α − 1)² at α = 1.0001": errors[0] / excess[0] ** 2,
            "difference from rg.scale_key_effect": same,
        },
        chart=Lines(excess, curves, "α − 1", "mean norm", log="xy"),
    )


def scale_first(k: Tensor, alpha: float) -> Tensor:
    """The keys, the first multiplied by alpha."""
    return torch.cat([alpha * k[..., :1, :], k[..., 1:, :]], -2)
