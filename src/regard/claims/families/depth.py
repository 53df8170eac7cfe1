"""Claims about residual connections, normalisation, feed-forward layers and depth."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from regard.claims.charts import Bars, Lines, Maps
from regard.claims.claim import Evidence, Measure, Trial, claim, literature
from regard.claims.families.positions import draw_bag
from regard.claims.measurements import count_parameters, jacobian, log_slope
from regard.claims.training import label_loss, train_classifier
from regard.errors import TrainError
from regard.inspection import activation_names, look
from regard.models import (
    Classifier,
    ClassifierConfig,
    classifier_base,
    language_base,
    translator_base,
    vision_base,
)
from regard.nn import Encoder, EncoderBlock, FeedForward, MultiHeadAttention, Norm, Residual
from regard.ops import layer_norm

DIVERGED = 100.0  # losses above it, or infinite, are drawn there
STACKS: dict[str, dict[str, Any]] = {
    "plain": {"norm": "none", "skip": False},
    "residual": {"norm": "none"},
    "post-LN": {},
    "pre-LN": {"norm_first": True},
}


@claim("H1", source="homework", verdict="true")
def residual_derivative(trial: Trial) -> Evidence:
    """The derivative of x + F(x) is the identity plus the derivative of F.

    Refutation: a derivative of the residual connection that differs from I + J
    Remark: Post-LN multiplies it by the derivative of the norm, which is not the identity.
    """
    norms = {"residual": "none", "residual, then norm (post-LN)": "layer"}

    def draw() -> dict[str, Tensor]:
        layer, x = trial.build(lambda: FeedForward(8)), trial.normal(8)
        expected, errors = torch.eye(8, dtype=torch.float64) + jacobian(layer, x), {}
        for name, norm in norms.items():
            residual = trial.build(lambda norm=norm: Residual(8, norm=norm))
            actual = jacobian(lambda x, residual=residual: residual(x, layer), x)
            errors[name] = (actual - expected).abs().max()
        return errors

    errors = trial.repeat(20, draw)
    plain, normed = errors.values()
    return Evidence(
        holds=plain.max() < 1e-12,
        measures={
            "largest difference from I + J": plain.max(),
            "smallest difference after a norm": normed.min(),
        },
        chart=Bars(
            {name: x.max() for name, x in errors.items()},
            "largest |derivative − (I + J)|",
            log="y",
        ),
    )


@claim("H2", source="homework", verdict="false")
def residual_gain(trial: Trial) -> Evidence:
    """Because of the identity, a residual connection never shrinks gradients: their gain is at
    least 1.

    Correction: I + J may be singular: F(x) = −x gives 0. Only σ_min(I + J) ≥ 1 − ‖J‖ holds.
    Refutation: a smallest singular value of I + J of 1 or more in every draw
    """
    residual, x = trial.build(lambda: Residual(16, norm="none")), trial.normal(16)
    gains, rows, slack = [0.1, 0.25, 0.5, 0.75, 1.0], [], []
    for gain in gains:
        draws = []
        for _ in range(20):
            j = gain * trial.normal(16, 16) / 4
            total = jacobian(lambda x, j=j: residual(x, lambda x: x @ j.mT), x)
            draws.append(torch.linalg.svdvals(total)[-1])
            slack.append(draws[-1] - (1 - torch.linalg.matrix_norm(j, 2)))
        rows.append(torch.stack(draws))
    opposite = torch.linalg.svdvals(jacobian(lambda x: residual(x, lambda x: -x), x))[0]
    smallest = torch.stack(rows)
    curves = {"σ_min, mean": smallest, "claimed": [1.0] * 5}
    return Evidence(
        holds=smallest.min() >= 1,
        corrected=min(slack) > -1e-9 and opposite < 1e-12,
        measures={
            "smallest singular value, gain 0.5": smallest[2],
            "share of draws below 1": (smallest < 1).double().mean(),
            "largest singular value, F(x) = −x": opposite,
            "least distance from the bound 1 − ‖J‖": min(slack),
        },
        chart=Lines(gains, curves, "gain of J", "smallest gain of a gradient"),
    )


@claim("H3", source="exam", verdict="true", study="depth")
def residual_depth(trial: Trial) -> Evidence:
    """Residual connections keep gradients from vanishing in deep stacks.

    Refutation: a gradient at the input of 48 residual blocks below a thousandth of that at 2
    Remark: At initialisation. Without a norm they explode instead; a norm keeps them in range.
    """
    depths, norms = _gradient_norms(trial.seed, trial.full)
    growth = {name: x[:, -1] / x[:, 0] for name, x in norms.items()}
    curves = {name: x.log().mean(0).exp() for name, x in norms.items()}
    smallest = {name: x.min() for name, x in growth.items() if name != "plain"}
    return Evidence(
        holds=growth["plain"].max() < 1e-6 and min(smallest.values()) > 1e-3,
        measures={
            "log₁₀ of the gradient ratio, 48 to 2 blocks": {n: x.log10() for n, x in growth.items()}
        },
        chart=Lines(depths, curves, "blocks", "gradient at the input", log="y"),
    )


@claim("H4", source="exam", verdict="true", trained=True, study="depth")
def deep_stacks_train(trial: Trial) -> Evidence:
    """Residual connections and layer norm make stacks of 12 and more layers trainable.

    Refutation: 12 or 32 layers with both that do not learn a task, or 32 plain layers that do
    Remark: 12 plain layers still learn this easy task, as Adam rescales small gradients; 32 do not.
    """
    _, norms = _gradient_norms(trial.seed, trial.full)
    growth = norms["pre-LN"][:, 2] / norms["pre-LN"][:, 0]
    losses = {
        f"{layers} layers": {
            name: _deep_losses(trial, name, layers) for name in ("plain", "pre-LN")
        }
        for layers in (12, 32)
    }
    learned = max(x for by_name in losses.values() for x in by_name["pre-LN"])
    return Evidence(
        holds=learned < 0.3
        and min(losses["32 layers"]["plain"]) > 0.4
        and growth.min() > 0.01
        and growth.max() < 100,
        measures={
            "loss": losses,
            "gradient before training, 12 to 2 blocks, pre-LN": growth,
        },
    )


@claim("H5", source="exam", verdict="conditional")
def block_as_identity(trial: Trial) -> Evidence:
    """Thanks to the skip connection a block can be exactly the identity.

    Condition: The norm is inside the branch (pre-LN). Post-LN with F = 0 gives LN(x).
    Refutation: a pre-LN block with F = 0 that changes its input, or a post-LN block that does not
    """
    changes = {}
    for name, norm_first in (("pre-LN", True), ("post-LN", False)):
        block = trial.build(lambda first=norm_first: EncoderBlock(16, 4, norm_first=first))
        for layer in (block.self_attention.to_out, block.feed_forward.to_out):
            nn.init.zeros_(layer.weight)
        x = 3 * trial.normal(20, 6, 16) + 1
        changes[name] = (block(x) - x).norm(dim=-1).max()
    return Evidence(
        holds=max(changes.values()) < 1e-12,
        holds_if=changes["pre-LN"] < 1e-12,
        measures={"largest change with F = 0": changes},
        chart=Bars(changes, "largest ‖block(x) − x‖, F = 0"),
    )


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
        measures={
            "variance": means["usual"]["variance"],
            "variance, gain 1.7, bias 0.3": means["gain 1.7, bias 0.3"]["variance"],
            "mean, gain 1.7, bias 0.3": means["gain 1.7, bias 0.3"]["mean"],
            "variance, token × 0.003": means["token × 0.003"]["variance"],
        },
        chart=Bars(means, "of the output"),
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

    Condition: The example is one token. Every token of a sequence has a mean and variance of its
        own.
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
            "change of the other tokens": changes,
        },
        chart=Bars(changes, "change of other tokens, one × 10"),
    )


@claim("H9", source="homework", verdict="conditional")
def norm_gradient_scale(trial: Trial) -> Evidence:
    """Layer norm keeps gradients at a consistent scale.

    Condition: The input keeps its scale. LN(cx) = LN(x), so the gradient that passes back falls as
        1/c; it also loses two of its d dimensions.
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
        holds=gains.mean(1).max() < 3 * gains.mean(1).min(),
        holds_if=same < 1e-6 and spread < 3 and abs(power + 1) < 0.01,
        measures={
            "slope of log gradient over log scale": power,
            "largest over smallest gradient at one scale": spread,
            "largest change of the output under scaling": same,
            "rank of the derivative, of 16": max(ranks),
        },
        chart=Lines(scales, curves, "scale c of the input", "norm of the derivative", log="xy"),
    )


@claim("H10", source="exam", verdict="conditional", trained=True)
def norm_allows_rates(trial: Trial) -> Evidence:
    """Layer norm reduces covariate shift, so that training is faster and stands higher rates.

    Condition: Only the higher rates are meant: training stays bounded at ten times the learning
        rate. At a rate that suits both, it is not reliably faster.
    Remark: Settled at toy size: 3 layers, AdamW without clipping, 60 updates, 3 seeds. Inputs of
        the last feed-forward layer shift with layer norm too.
    Refutation: a model without layer norm that survives a rate of 0.1, one with it that does not,
        or a lead at rates that suit both
    """
    rates = [1e-3, 1e-2, 3e-2, 1e-1]
    runs = {
        name: [[_rate_run(trial, norm, rate, n) for n in trial.seeds(3, 8)] for rate in rates]
        for name, norm in (("layer norm", True), ("none", False))
    }
    results = {name: torch.tensor(x) for name, x in runs.items()}  # rate, seed, loss or shift
    losses = {name: x[..., 0] for name, x in results.items()}
    shifts = {name: x[0, :, 1] for name, x in results.items()}
    stands = {name: rates[int((x.amax(1) < 1).sum()) - 1] for name, x in losses.items()}
    ratio = (losses["none"][:2] / losses["layer norm"][:2]).log().flatten()
    lead = Measure.mean("log of loss without over loss with, rates to 0.01", ratio)
    higher = stands["layer norm"] >= 0.1 > stands["none"] and losses["none"][-1].min() > 1
    curves = {name: x.median(1).values.clamp(max=DIVERGED) for name, x in losses.items()}
    label = f"median loss ({DIVERGED:.0f}: diverged)"
    return Evidence(
        holds=higher and (lead.low or 0) > 0 and (shifts["layer norm"] < shifts["none"]).all(),
        holds_if=higher,
        measures={
            "highest rate with a loss below 1": stands,
            lead.name: lead,
            "shift at rate 0.001 in std": shifts,
        },
        chart=Lines(rates, curves, "learning rate", label, log="xy"),
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
            "rank of outputs of width 32, hidden layer of 128": ranks[128],
            "rank of outputs of width 32, hidden layer of 8": ranks[8],
            "parameters at width 512": count_parameters(FeedForward(512)),
        },
        chart=Bars(
            {f"hidden {width}": x for width, x in ranks.items()},
            "rank of the outputs, model width 32",
        ),
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
            "difference of one vector at positions 1 to 64": per_position,
            "smallest difference of one vector in two layers": per_layer,
            "feed-forward parameters": {"1 layer": counts[0], "6 layers": counts[-1]},
        },
        chart=Bars(bars, "least difference of outputs of one vector"),
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


@cache
def _gradient_norms(seed: int, full: bool) -> tuple[list[int], dict[str, Tensor]]:
    """Gradient of a random projection of the output by the input: (draw, depth) per stack."""
    trial, depths = Trial(seed, full=full), [2, 6, 12, 48]
    norms = {}
    for name, options in STACKS.items():
        draws = []
        for _ in range(trial.size(3, 10)):
            stack = trial.build(lambda options=options: Encoder(48, 32, 4, **options))
            x, direction = trial.normal(8, 32), trial.normal(8, 32)
            draws.append([_input_gradient(stack, depth, x, direction) for depth in depths])
        norms[name] = torch.tensor(draws, dtype=torch.float64)
    return depths, norms


def _deep_losses(trial: Trial, name: str, layers: int) -> list[float]:
    """Test loss of a deep stack after a short training, per seed."""
    sizes = {"dim": 16, "ffn_dim": 32, "layers": layers}
    options = {"norm_first": False, "final_norm": name == "pre-LN"} | STACKS[name]
    return [
        _train_bag(sizes | options, n, trial.device, steps=60, lr=2e-3)[0]
        for n in trial.seeds(2, 5)
    ]


def _rate_run(trial: Trial, norm: bool, rate: float, seed: int) -> tuple[float, float]:
    """Test loss at a constant rate, and the shift of the last feed-forward layer's inputs."""
    options = {"layers": 3} if norm else {"layers": 3, "norm": "none", "final_norm": False}
    training = {"steps": 60, "lr": rate, "max_grad_norm": 1e6, "schedule": "constant"}
    return _train_bag(options, seed, trial.device, **training)


def _train_bag(
    options: dict[str, Any], seed: int, device: str, **training: Any
) -> tuple[float, float]:
    """Test loss on 'more of token 0 than of token 1', and the shift of inner inputs."""
    sizes = {"vocab": 10, "classes": 2, "dim": 32, "ffn_dim": 64, "heads": 2, "pooling": "mean"}
    config = ClassifierConfig(**sizes | options)
    test = draw_bag(torch.Generator().manual_seed(10_000 + seed), 1000)
    torch.manual_seed(seed)
    before = _last_inputs(Classifier(config), test["inputs"])
    try:
        model = train_classifier(
            lambda: Classifier(config), draw_bag, seed=seed, device=device, **training
        )
    except TrainError:  # the loss is no longer finite
        return math.inf, math.nan
    shift = (_last_inputs(model, test["inputs"]).mean(0) - before.mean(0)).abs() / before.std(0)
    with torch.no_grad():
        return float(label_loss(model, test)), float(shift.mean())


def _last_inputs(model: nn.Module, tokens: Tensor) -> Tensor:
    """Inputs of the last feed-forward layer, one row per token."""
    name = [name for name in activation_names(model) if name.endswith("mlp.in")][-1]
    with torch.no_grad(), look(model, "", activations=name) as sight:
        model(tokens)
    return sight.activations[name].flatten(0, 1)


def _input_gradient(stack: Encoder, depth: int, x: Tensor, direction: Tensor) -> float:
    """Norm of the gradient at the input of the first blocks of a stack."""
    x = x[None].clone().requires_grad_()
    y = x
    for block in list(stack.blocks)[:depth]:
        y = block(y)
    return float(torch.autograd.grad((y * direction).sum(), x)[0].norm())


def _norm_whole_example(x: Tensor, eps: float = 1e-5) -> Tensor:
    """What a norm over all tokens and features of an example would give."""
    mean = x.mean((1, 2), keepdim=True)
    return (x - mean) / (x.var((1, 2), unbiased=False, keepdim=True) + eps).sqrt()


def _feed_forwards(stack: Encoder) -> list[FeedForward]:
    return [layer for layer in stack.modules() if isinstance(layer, FeedForward)]
