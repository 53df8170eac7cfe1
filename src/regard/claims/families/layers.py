"""Claims about normalisation and feed-forward layers."""

import torch
from torch import Tensor

from regard.claims.charts import Lines, Maps
from regard.claims.claim import Evidence, Trial, claim, literature
from regard.claims.measurements import count_parameters, jacobian, log_slope
from regard.models import classifier_base, language_base, translator_base, vision_base
from regard.nn import Encoder, FeedForward, MultiHeadAttention, Norm
from regard.ops import layer_norm


@claim("H6", source="exam", verdict="conditional")
def norm_moments(trial: Trial) -> Evidence:
    """The output of layer norm has mean 0 and variance 1.

    Condition: Gain is 1 and bias 0, and the variance of the token is far above ε.
    Refutation: another mean or variance without gain and bias
    """
    norm, x = trial.build(lambda: Norm(64)), trial.normal(50, 64)
    gained = trial.build(lambda: Norm(64))
    gained.gain.data.fill_(1.7)  # pyright: ignore[reportOptionalMemberAccess] a layer norm has both
    gained.bias.data.fill_(0.3)  # pyright: ignore[reportOptionalMemberAccess]
    outputs = {"usual": norm(x), "gain 1.7, bias 0.3": gained(x), "token × 0.003": norm(0.003 * x)}
    moments = {
        n: {"mean": y.mean(-1), "variance": y.var(-1, unbiased=False)} for n, y in outputs.items()
    }
    off = {
        name: max(x["mean"].abs().max(), (x["variance"] - 1).abs().max())
        for name, x in moments.items()
    }
    means = {name: {k: v.mean() for k, v in x.items()} for name, x in moments.items()}
    return Evidence(
        holds=max(off.values()) < 1e-4,
        holds_if=off["usual"] < 1e-4,
        measures={"of the output": means},
    )


@claim("H7", source="exam", verdict="false")
def norm_needs_epsilon(trial: Trial) -> Evidence:
    """Layer norm is (x − μ) / σ.

    Correction: It is (x − μ) / √(σ² + ε): without ε a constant token is 0/0.
    Refutation: finite outputs of (x − μ) / σ for constant tokens, or a layer norm that differs from
        the formula with ε
    """
    scales, eps, token = [0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0], 1e-5, trial.normal(16)
    plain, library, errors = [], [], []
    for scale in scales:
        x = 3 + scale * token
        centred, variance = x - x.mean(), x.var(unbiased=False)
        y = layer_norm(x, eps=eps)
        plain.append((centred / variance.sqrt()).norm())
        library.append(y.norm())
        errors.append((centred / (variance + eps).sqrt() - y).abs().max())
    finite = torch.stack(plain).isfinite()
    gap = max((p - y).abs() for p, y in zip(plain[1:], library[1:], strict=True))
    curves = {"without ε (0/0 at spread 0)": plain[1:], "with ε": library[1:]}
    axes = "spread of the token's features", "norm of the output"
    return Evidence(
        holds=finite.all() and gap < 1e-6,
        corrected=max(errors) < 1e-9 and library[0] == 0 and not finite[0],
        measures={
            "finite outputs of constant tokens without ε": finite[0],
            "output of a constant token with ε": library[0],
            "largest difference from the formula with ε": max(errors),
        },
        chart=Lines(scales[1:], curves, *axes, log="x"),
    )


@claim("H8", source="homework", verdict="conditional")
def norm_per_token(trial: Trial) -> Evidence:
    """Layer norm normalises each example over all of its neurons.

    Condition: An example is one token: every token of a sequence has its own mean and variance.
    Refutation: tokens that change when another token of the sequence is scaled
    """
    norm, x = trial.build(lambda: Norm(16)), trial.normal(20, 5, 16)
    larger, others = x.clone(), [0, 1, 3, 4]
    larger[:, 2] *= 10
    whole, single = ((norm(y) - _norm_whole_example(y)).abs().max() for y in (x, x[:, :1]))
    changes = {
        name: (f(larger) - f(x))[:, others].abs().max()
        for name, f in (("layer norm", norm), ("norm of the whole example", _norm_whole_example))
    }
    return Evidence(
        holds=whole < 1e-6,
        holds_if=single < 1e-6 and changes["layer norm"] == 0,
        measures={
            "difference from a norm of the whole example, 5 tokens": whole,
            "difference from a norm of the whole example, 1 token": single,
            "change of other tokens, one × 10": changes,
        },
    )


@claim("H9", source="homework", verdict="conditional")
def norm_gradient_scale(trial: Trial) -> Evidence:
    """Layer norm keeps gradients at a consistent scale.

    Condition: The input keeps its scale: since LN(cx) = LN(x), the gradient that passes back
        falls as 1/c. It also loses two of its d dimensions.
    Refutation: a gradient that does not depend on the scale of the input
    """
    norm = trial.build(lambda: Norm(16, eps=1e-12))
    scales = torch.tensor([0.1, 0.3, 1, 3, 10], dtype=torch.float64)
    x = trial.normal(20, 16)
    rows = [[torch.linalg.matrix_norm(jacobian(norm, c * t)) for t in x] for c in scales]
    gains = torch.tensor(rows, dtype=torch.float64)
    power = log_slope(scales, gains.mean(1))
    ranks = [torch.linalg.matrix_rank(jacobian(norm, t), rtol=1e-6) for t in x]
    same = max((norm(c * x) - norm(x)).abs().max() for c in scales)
    spread = gains[2].max() / gains[2].min()
    curves = {"gradient": gains.mean(1), "1/c": gains[2].mean() / scales}
    return Evidence(
        holds=gains.max() < 3 * gains.min(),
        holds_if=same < 1e-6 and spread < 3 and abs(power + 1) < 0.01,
        measures={
            "slope of log gradient over log scale": power,
            "largest over smallest gradient at one scale": spread,
            "largest change of the output under scaling": same,
            "rank of the derivative, of 16": max(ranks),
        },
        chart=Lines(scales, curves, "scale c of the input", "norm of the derivative", log="xy"),
    )


@claim("H11", source="exam", verdict="true")
def feed_forward_alone(trial: Trial) -> Evidence:
    """The feed-forward layer acts on each position alone, with the same weights; attention mixes
    positions.

    Refutation: an output of the feed-forward layer that depends on another position, or two
        positions with the same vector and different outputs
    """
    x = trial.normal(1, 6, 8)
    x[0, 4] = x[0, 1]
    feed_forward = trial.build(lambda: FeedForward(8))
    layers = {
        "feed-forward": feed_forward,
        "attention": trial.build(lambda: MultiHeadAttention(8, 2)),
    }
    maps = {name: jacobian(f, x)[0, :, :, 0].norm(dim=(1, 3)) for name, f in layers.items()}
    y = feed_forward(x)[0]
    alone, mixing = (m[~torch.eye(6, dtype=torch.bool)] for m in maps.values())
    difference = (y[4] - y[1]).abs().max()
    return Evidence(
        holds=alone.max() == 0 and mixing.min() > 0 and difference < 1e-12,
        measures={
            "derivative by another position, feed-forward": alone.max(),
            "derivative by another position, attention, least": mixing.min(),
            "difference of equal tokens at two positions": difference,
        },
        chart=Maps(maps, "input position", "output position"),
    )


@claim("H13", source="homework", verdict="false")
def feed_forward_bottleneck(trial: Trial) -> Evidence:
    """The feed-forward layer is a bottleneck.

    Correction: It widens and then narrows: an inverted bottleneck, usually of 4 times the width. A
        bottleneck would limit the rank of what passes.
    Refutation: a hidden layer that is narrower than the model, or a limited rank
    """
    presets = (
        classifier_base(vocab=9, classes=2),  # BERT
        language_base(vocab=9),  # GPT-2
        translator_base(vocab=9),  # Transformer
        vision_base(classes=2),  # ViT
    )
    ratios, ranks = [p.resolved_ffn_dim / p.dim for p in presets], {}
    for width in (8, 16, 32, 128):
        layer = trial.build(lambda width=width: FeedForward(32, width))
        ranks[width] = torch.linalg.matrix_rank(layer(trial.normal(200, 32)), rtol=1e-9)
    return Evidence(
        holds=max(ratios) < 1 and ranks[128] < 32,
        corrected=set(ratios) == {4.0} and ranks[128] == 32 and ranks[8] == 8,
        measures={
            "hidden width over model width in 4 published sizes": max(ratios),
            "rank of the outputs, model width 32": {f"hidden {n}": x for n, x in ranks.items()},
            "parameters at width 512": count_parameters(FeedForward(512)),
        },
    )


@claim("H14", source="homework", verdict="conditional")
def feed_forward_parameters(trial: Trial) -> Evidence:
    """Feed-forward layers give each position parameters of its own.

    Condition: 'Its own' means per layer: all positions of a layer share its parameters, and each
        layer has others.
    Refutation: a parameter count that grows with the length, or layers that share parameters
    """
    x, depths = trial.normal(8), [1, 2, 4, 6]
    stacks = [trial.build(lambda depth=depth: Encoder(depth, 8, 2)) for depth in depths]
    counts = [sum(count_parameters(f) for f in _feed_forwards(stack)) for stack in stacks]
    layers = _feed_forwards(stacks[-1])
    at_positions = torch.stack([layers[0](x.expand(n, 8))[-1] for n in (1, 2, 16, 64)])
    per_position = (at_positions - at_positions[0]).abs().max()
    per_layer = torch.pdist(torch.stack([layer(x) for layer in layers])).min()
    bars = {"two positions, one layer": per_position, "two layers, one position": per_layer}
    return Evidence(
        holds=per_position > 1e-3,
        holds_if=per_position < 1e-12
        and per_layer > 1e-3
        and counts == [depth * counts[0] for depth in depths],
        measures={
            "least difference of outputs of one vector": bars,
            "feed-forward parameters": {"1 layer": counts[0], "6 layers": counts[-1]},
        },
    )


literature(
    "H15",
    "Feed-forward layers make the Transformer a universal approximator.",
    source="homework",
    remark="Yun et al., Are Transformers universal approximators of sequence-to-sequence "
    "functions?, ICLR 2020 (arXiv 1912.10077): continuous functions on a compact set, with enough "
    "layers; functions that depend on order need positions. A proof of existence: a fit at toy "
    "size neither shows nor refutes it.",
)


def _norm_whole_example(x: Tensor, eps: float = 1e-5) -> Tensor:
    """What a norm over all tokens and features of an example would give."""
    mean = x.mean((1, 2), keepdim=True)
    return (x - mean) / (x.var((1, 2), unbiased=False, keepdim=True) + eps).sqrt()


def _feed_forwards(stack: Encoder) -> list[FeedForward]:
    return [layer for layer in stack.modules() if isinstance(layer, FeedForward)]
