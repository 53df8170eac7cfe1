"""Where the gradient goes: through depth, through time, and into the weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.block_stacks import BlockStack, record_stacks
from regard.inspection.adapters.module_tracker import check_model
from regard.inspection.gradients.recurrent_states import record_steps

VANISHING = 1e-3  # less than this share of the gradient arrives at the far end
EXPLODING = 1e3  # it arrives more than this many times larger


@dataclass(frozen=True)
class GradientFlag:
    """A place where the gradient fades, grows or breaks, with the number that says so.

    >>> str(GradientFlag("encoder.blocks", "vanishing", 1e-5))
    'encoder.blocks: vanishing, 1e-05 of the gradient at its end arrives at its start'
    """

    where: str
    kind: Literal["vanishing", "exploding", "not finite"]
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.kind}, {self.ratio:.3g} of the gradient at its end "
            "arrives at its start"
        )


@dataclass(frozen=True)
class TimeGradients:
    """The gradient at each state of one cell, (batch, time); c only for an LSTM.

    h_t: ‖∂J/∂h_t‖,   c_t: ‖∂J/∂C_t‖, all paths counted,   over the hidden units

    `rate` is what one step back multiplies the norm by, on average from last to first.

    >>> h = torch.tensor([[0.25, 0.5, 1.0]])
    >>> TimeGradients(h, None).rate, TimeGradients(h, None).ratio
    (0.5, 0.25)
    """

    h: Float[Tensor, "batch time"]
    c: Float[Tensor, "batch time"] | None
    reverse: bool = False  # the cell reads from the right: its first step is the last place

    @property
    def ratio(self) -> float:
        """First over last: by c for an LSTM, whose memory it is."""
        return _ratio(*self._ends())

    @property
    def rate(self) -> float:
        first, last = self._ends()
        steps = self.h.shape[1] - 1
        return _ratio(first, last) ** (1 / steps) if steps else 1.0

    def _ends(self) -> tuple[float, float]:
        norms = (self.h if self.c is None else self.c).norm(dim=0)
        norms = norms.flip(0) if self.reverse else norms
        # Padding and states after the last one that the loss reads have no gradient: where it
        # ends is where there is some; one that reads from the right has its padding in front.
        reached = norms.nonzero().flatten()
        if not len(reached):
            return 0.0, 0.0
        return float(norms[reached[0] if self.reverse else 0]), float(norms[reached[-1]])


@dataclass(frozen=True)
class GradientNorms:
    """Norms of ∂J/∂· by depth, by time and by weight, and what is wrong with them.

    `depth[stack]` has a number before the first block and after each; `time[cell]` the states of a
    recurrent cell; `weights` one a parameter, of the whole tensor. None: the loss cannot feel it.

    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    >>> _ = torch.nn.init.constant_(model[0].weight, 3.0)
    >>> found = rg.gradient_norms(model, lambda: model(torch.full((1, 1), 2.0)).sum())
    >>> found.loss, found.weights, found.depth
    (6.0, {'0.weight': 2.0}, {'': [3.0, 1.0]})
    """

    loss: float
    depth: dict[str, list[float | None]] = field(default_factory=dict)
    time: dict[str, TimeGradients] = field(default_factory=dict)
    weights: dict[str, float | None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[GradientFlag]:
        """What fades below 1e-3 or grows above 1e3 from end to start, or is no number at all.

        A cell that the loss does not depend on has nothing to fade.
        """
        told = {name: [n for n in norms if n is not None] for name, norms in self.depth.items()}
        ratios = {name: _ratio(norms[0], norms[-1]) for name, norms in told.items()}
        felt = {name: found for name, found in self.time.items() if found.h.any()}
        ratios |= {f"{name} through time": found.ratio for name, found in felt.items()}
        found = [GradientFlag(name, kind, r) for name, r in ratios.items() if (kind := _verdict(r))]
        bad = (name for name, norm in self.weights.items() if norm and not math.isfinite(norm))
        return found + [GradientFlag(name, "not finite", math.nan) for name in bad]

    def __str__(self) -> str:
        lines = [f"loss {self.loss:.6g}"]
        for name, norms in self.depth.items():
            lines.append(f"{name or 'depth'}: " + " ".join(map(_short, norms)))
        for name, found in self.time.items():
            lines.append(f"{name} through time: × {found.rate:.3g} a step back")
        return "\n".join([*lines, *(f"! {flag}" for flag in self.flags)])


def gradient_norms(model: nn.Module, loss: Callable[[], Tensor] | Tensor) -> GradientNorms:
    """How the gradient of a loss flows back through a model's blocks and, if recurrent, its steps.

    ∂J/∂x_l for the stream x_l after block l,   ∂J/∂h_t and ∂J/∂C_t for every state

    `loss` is a function that runs the model and gives J; every state then gets its whole gradient,
    also torch's nn.RNN, nn.GRU and nn.LSTM. Of a J that is computed already only the weights' can
    be told. The `.grad` of parameters is not touched. To ask how far memory reaches, let J read the
    last state only: a loss at every step has a short way to each.

    >>> model = rg.nn.Recurrent(1, 8, kind="rnn")
    >>> x = torch.randn(1, 50, 1)
    >>> found = rg.gradient_norms(model, lambda: model(x)[0][:, -1].sum())
    >>> found.time["0"].h.shape, found.flags[0].kind
    (torch.Size([1, 50]), 'vanishing')
    """
    check_model(model)
    if isinstance(loss, Tensor):
        return _of_weights(model, loss)
    with (
        torch.enable_grad(),
        record_stacks(model, inputs_require_grad=True) as stacks,
        record_steps(model) as steps,
    ):
        j = loss()
    _check(j)
    stacks = [stack for stack in stacks if stack.is_complete]
    levels = [level for stack in stacks for level in _levels(stack)]
    weights = dict(model.named_parameters())
    asked = [*(x for level in levels for x in level), *steps.all_states, *weights.values()]
    reached = iter(_grads(j, asked))
    norms = iter([_norm([next(reached) for _ in level]) for level in levels])
    depth = {stack.path: [next(norms) for _ in _levels(stack)] for stack in stacks}
    times = steps.norms([next(reached) for _ in steps.all_states])
    return GradientNorms(
        loss=float(j.detach()),
        depth={name: found for name, found in depth.items() if any(found)},
        time={
            name: TimeGradients(h, c[0] if c else None, name in steps.reversed_cells)
            for name, (h, *c) in times.items()
        },
        weights={name: _norm([grad]) for name, grad in zip(weights, reached, strict=True)},
        skipped=steps.skipped,
    )


def _of_weights(model: nn.Module, j: Tensor) -> GradientNorms:
    _check(j)
    weights = dict(model.named_parameters())
    found = zip(weights, _grads(j, list(weights.values()), again=True), strict=True)
    reason = {"depth and time": "the loss was computed before; try a function that computes it"}
    norms = {name: _norm([grad]) for name, grad in found}
    return GradientNorms(loss=float(j.detach()), weights=norms, skipped=reason)


def _levels(stack: BlockStack) -> list[list[Tensor]]:
    """At each depth the tensors of all runs."""
    return [stack.inputs, *stack.outputs]


def _grads(j: Tensor, points: list[Tensor], again: bool = False) -> list[Tensor | None]:
    """∂J/∂point, None where J does not depend on it or nobody asked torch to remember."""
    known = [x for x in points if x.requires_grad]
    found = iter(torch.autograd.grad(j, known, retain_graph=again, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in points]


def _norm(grads: list[Tensor | None]) -> float | None:
    parts = [float(grad.detach().double().norm()) for grad in grads if grad is not None]
    return math.hypot(*parts) if parts else None


def _ratio(first: float, last: float) -> float:
    if not (math.isfinite(first) and math.isfinite(last)):
        return math.nan
    return first / last if last else math.inf if first else 0.0


def _short(norm: float | None) -> str:
    return "-" if norm is None else f"{norm:.3g}"


def _verdict(ratio: float) -> Literal["vanishing", "exploding", "not finite"] | None:
    if math.isnan(ratio):
        return "not finite"
    if ratio < VANISHING:
        return "vanishing"
    return "exploding" if ratio > EXPLODING else None


def _check(j: Tensor) -> None:
    if not isinstance(j, Tensor) or j.numel() != 1:
        got = tuple(j.shape) if isinstance(j, Tensor) else type(j).__name__
        raise LookError(f"loss: needs one number, a tensor, got {got}; try .mean()")
    if not j.requires_grad:
        raise LookError(
            "loss: needs to depend on the weights, got a tensor without a graph; "
            "try without no_grad, item() or detach()"
        )
