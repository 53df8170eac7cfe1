"""Claims about residual connections, depth, and trainings with and without a norm."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from regard.claims.charts import Bars, Lines
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.families.trained_positions import draw_bag
from regard.claims.measurements import jacobian, label_loss, train_classifier
from regard.errors import TrainError
from regard.inspection import activation_names, look
from regard.models import Classifier, ClassifierConfig
from regard.nn import Encoder, EncoderBlock, FeedForward, Residual

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
    norms: dict[str, Any] = {"residual": "none", "residual, then norm (post-LN)": "layer"}

    def draw() -> dict[str, Tensor]:
        layer, x = trial.build(lambda: FeedForward(8)), trial.normal(8)
        expected, errors = torch.eye(8, dtype=torch.float64) + jacobian(layer, x), {}
        for name, norm in norms.items():
            residual = trial.build(lambda norm=norm: Residual(8, norm=norm))
            actual = jacobian(lambda x, residual=residual: residual(x, layer(x)), x)
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
            {name: x.max() for name, x in errors.items()}, "largest |derivative − (I + J)|", log="y"
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
            total = jacobian(lambda x, j=j: residual(x, x @ j.mT), x)
            draws.append(torch.linalg.svdvals(total)[-1])
            slack.append(draws[-1] - (1 - torch.linalg.matrix_norm(j, 2)))
        rows.append(torch.stack(draws))
    opposite = torch.linalg.svdvals(jacobian(lambda x: residual(x, -x), x))[0]
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
    Remark: This is measured at initialisation. Without a norm the gradients explode instead; a
        norm keeps them in range.
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


@claim("H4", source="exam", verdict="conditional", trained=True, study="depth")
def deep_stacks_train(trial: Trial) -> Evidence:
    """Residual connections and layer norm make stacks of 12 and more layers trainable.

    Condition: There are clearly more than 12: 12 plain layers still learn this easy task, as Adam
        rescales small gradients; 32 do not.
    Refutation: 12 or 32 layers with both that do not learn a task, or 32 plain layers that do
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
    both = learned < 0.3 and growth.min() > 0.01 and growth.max() < 100
    plain = [min(by_name["plain"]) for by_name in losses.values()]
    return Evidence(
        holds=both and min(plain) > 0.4,
        holds_if=both and plain[1] > 0.4,
        measures={"loss": losses, "gradient before training, 12 to 2 blocks, pre-LN": growth},
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
        measures={"largest ‖block(x) − x‖, F = 0": changes},
    )


@claim("H10", source="exam", verdict="conditional", trained=True)
def norm_allows_rates(trial: Trial) -> Evidence:
    """Layer norm reduces covariate shift, so that training is faster and tolerates higher rates.

    Condition: It holds for the higher rates alone: training stays bounded at ten times the learning
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
        holds=higher and lead.above(0) and (shifts["layer norm"] < shifts["none"]).all(),
        holds_if=higher,
        measures={
            "highest rate with a loss below 1": stands,
            lead.name: lead,
            "shift at rate 0.001 in std": shifts,
        },
        chart=Lines(rates, curves, "learning rate", label, log="xy"),
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
