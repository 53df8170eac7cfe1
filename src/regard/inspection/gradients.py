"""Gradients of a score at named activations, and gradient norms by depth, time and parameter."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters import torch_recurrent
from regard.inspection.adapters.activation_point import hook_activations
from regard.inspection.adapters.activation_points import find_activations, match_activations
from regard.inspection.adapters.block_stacks import record_stacks
from regard.inspection.adapters.model_calls import Scalar, check_scalar
from regard.inspection.adapters.module_tracker import check_model
from regard.inspection.adapters.snapshot import snapshot
from regard.inspection.record.activations import Activations
from regard.inspection.record.gates import CellScope
from regard.ops.maybe_none import MaybeNone
from regard.ops.recurrence import CellStep, RecurrenceResult, State
from regard.ops.recurrence.op import reverse_sequences
from regard.ops.recurrence.reference import SequenceCall, StepCall, intercepting_recurrence

VANISHING = 1e-3  # ratio of the gradient norms at start and end
EXPLODING = 1e3


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationGradients:
    """A score, the activations it depends on, and its gradient at each."""

    score: float
    activations: Activations
    gradients: Activations


def activation_gradients(
    model: nn.Module, score: Scalar, activations: str | Sequence[str] = "*"
) -> ActivationGradients:
    """Gradient of a score at every named activation, from one backward pass.

    ∂score/∂x for each activation x; where the score does not depend on x it is 0

    Args:
        model: The model; it must not be compiled.
        score: Runs the model and returns the scalar to differentiate, such as one logit.
        activations: Globs over the names of `activation_names(model)`.

    >>> layer = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> result = activation_gradients(layer, lambda m: m(tokens)[0, -1, 5], "*.residual_out")
    >>> result.gradients["decoder.1.residual_out"][0, 0].abs().sum()  # of another position
    tensor(0.)
    """
    check_model(model)
    points = match_activations(find_activations(model), activations, "activations")
    values: list[tuple[str, Tensor]] = []
    inputs, gradients = Activations(), Activations()

    def record(name: str, x: Tensor) -> Tensor | None:
        if not x.is_floating_point():
            return None
        # a leaf where nothing below is trainable; else another node, so that a tensor that has two
        # names gets a gradient for each
        y = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        values.append((name, y))
        inputs.append(name, snapshot(x))
        return y

    with hook_activations(points, record), torch.enable_grad():
        value = score(model)
    check_scalar("score", value)
    if not values:
        raise LookError("score: needs to run the model it gets, got no activation")
    grads = torch.autograd.grad(
        value, [x for _, x in values], allow_unused=True, materialize_grads=True
    )
    for (name, _), grad in zip(values, grads, strict=True):
        gradients.append(name, grad)
    return ActivationGradients(score=float(value.detach()), activations=inputs, gradients=gradients)


@dataclass(frozen=True)
class GradientFlag:
    """A stack, cell or parameter whose gradient vanishes, explodes or is not finite.

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
    """Gradient norms of the states of one cell; c only for an LSTM.

    h_t: ‖∂J/∂h_t‖,   c_t: ‖∂J/∂C_t‖, total derivatives,   over the hidden units

    `rate` is the mean factor of the norm per step back in time.

    >>> h = torch.tensor([[0.25, 0.5, 1.0]])
    >>> TimeGradients(h, None).rate, TimeGradients(h, None).ratio
    (0.5, 0.25)
    """

    h: Float[Tensor, "batch time"]
    c: Float[Tensor, "batch time"] | MaybeNone
    reverse: bool = False  # the cell runs from right to left

    @property
    def ratio(self) -> float:
        """Norm at the first step over that at the last; of c for an LSTM."""
        return _ratio(*self._ends())

    @property
    def rate(self) -> float:
        first, last = self._ends()
        steps = self.h.shape[1] - 1
        return _ratio(first, last) ** (1 / steps) if steps else 1.0

    def _ends(self) -> tuple[float, float]:
        norms = (self.h if self.c is None else self.c).norm(dim=0)
        norms = norms.flip(0) if self.reverse else norms
        # Padding, and states after the last one that the loss uses, have no gradient: the end is
        # the last step with one. In the reverse direction padding comes first.
        reached = norms.nonzero().flatten()
        if not len(reached):
            return 0.0, 0.0
        return float(norms[reached[0] if self.reverse else 0]), float(norms[reached[-1]])


@dataclass(frozen=True)
class GradientNorms:
    """Gradient norms of a loss by depth, time and parameter.

    `depth[stack]` has one norm before the first block and one after each; `time[cell]` those of the
    states of a recurrent cell; `weights` one per parameter. None: the loss does not depend on it.

    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    >>> _ = torch.nn.init.constant_(model[0].weight, 3.0)
    >>> norms = rg.inspection.gradient_norms(model, lambda: model(torch.full((1, 1), 2.0)).sum())
    >>> norms.loss, norms.weights, norms.depth
    (6.0, {'0.weight': 2.0}, {'': [3.0, 1.0]})
    """

    loss: float
    depth: dict[str, list[float | None]] = field(default_factory=dict)
    time: dict[str, TimeGradients] = field(default_factory=dict)
    weights: dict[str, float | None] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[GradientFlag]:
        """Gradients that shrink below 1e-3 or grow above 1e3 from end to start, or are not finite.

        A cell that the loss does not depend on is not flagged.
        """
        depth = {name: [n for n in norms if n is not None] for name, norms in self.depth.items()}
        ratios = {name: _ratio(norms[0], norms[-1]) for name, norms in depth.items()}
        used = {name: norms for name, norms in self.time.items() if norms.h.any()}
        ratios |= {f"{name} through time": norms.ratio for name, norms in used.items()}
        flags: list[GradientFlag] = []
        for name, r in ratios.items():
            if not VANISHING <= r <= EXPLODING:
                kind = (
                    "vanishing" if r < VANISHING else "exploding" if r > EXPLODING else "not finite"
                )
                flags.append(GradientFlag(name, kind, r))
        bad = (name for name, norm in self.weights.items() if norm and not math.isfinite(norm))
        return flags + [GradientFlag(name, "not finite", math.nan) for name in bad]

    def __str__(self) -> str:
        lines = [f"loss {self.loss:.6g}"]
        for name, norms in self.depth.items():
            texts = ("-" if norm is None else f"{norm:.3g}" for norm in norms)
            lines.append(f"{name or 'depth'}: " + " ".join(texts))
        for name, states in self.time.items():
            lines.append(f"{name} through time: × {states.rate:.3g} per step back")
        return "\n".join([*lines, *(f"! {flag}" for flag in self.flags)])


def gradient_norms(model: nn.Module, loss: Callable[[], Tensor] | Tensor) -> GradientNorms:
    """Gradient norms of a loss at every block and, for recurrent cells, every time step.

    ∂J/∂x_l for the hidden state x_l after block l,   ∂J/∂h_t and ∂J/∂C_t for every state

    `loss` is a function that runs the model and returns J; recurrent cells of regard and torch get
    the total derivative at every state. For a J already computed, only the parameters' norms are
    available. The `.grad` of parameters is not changed. To measure how far memory reaches, let J
    use the last state only: a loss at every step has a short path to each.

    >>> model = rg.nn.Recurrent(1, 8, kind="rnn")
    >>> x = torch.randn(1, 50, 1)
    >>> norms = rg.inspection.gradient_norms(model, lambda: model(x)[0][:, -1].sum())
    >>> norms.time["0"].h.shape, norms.flags[0].kind
    (torch.Size([1, 50]), 'vanishing')
    """
    check_model(model)
    weights = dict(model.named_parameters())
    if isinstance(loss, Tensor):
        reason = "the loss is already computed; try a function that computes it"
        grads = _grads(loss, list(weights.values()), retain_graph=True)
        norms = {name: _norm([grad]) for name, grad in zip(weights, grads, strict=True)}
        skipped = {"depth and time": reason}
        return GradientNorms(loss=float(loss.detach()), weights=norms, skipped=skipped)
    steps = StepRecorder(CellScope(model))
    with (
        torch.enable_grad(),
        record_stacks(model, inputs_require_grad=True) as stacks,
        steps.cells.hooks(),
        torch_recurrent.hook_outputs(model, steps.on_torch_module),
        intercepting_recurrence(steps, steps.cells, other_threads=False),
    ):
        j = loss()
    # the tensors of all runs, per stack and depth
    levels = {s.path: [s.inputs, *s.outputs] for s in stacks if s.is_complete}
    inner = [x for stack in levels.values() for level in stack for x in level]
    grads = iter(_grads(j, [*inner, *steps.all_states, *weights.values()]))
    depth = {
        name: [_norm([next(grads) for _ in level]) for level in stack]
        for name, stack in levels.items()
    }
    times = steps.norms([next(grads) for _ in steps.all_states])
    reverse = {run.name for run in steps.runs if run.reverse}
    return GradientNorms(
        loss=float(j.detach()),
        depth={name: norms for name, norms in depth.items() if any(norms)},
        time={
            name: TimeGradients(h, c[0] if c else None, name in reverse)
            for name, (h, *c) in times.items()
        },
        weights={name: _norm([grad]) for name, grad in zip(weights, grads, strict=True)},
        skipped=steps.skipped,
    )


def _grads(j: Tensor, tensors: list[Tensor], retain_graph: bool = False) -> list[Tensor | None]:
    """∂J/∂x per tensor; None where J does not depend on x or x requires no gradient."""
    if not isinstance(j, Tensor) or j.numel() != 1:
        got = tuple(j.shape) if isinstance(j, Tensor) else type(j).__name__
        raise LookError(f"loss: needs a scalar tensor, got {got}; try .mean()")
    if not j.requires_grad:
        raise LookError(
            "loss: needs to require a gradient, got a detached tensor; "
            "try without no_grad, item() or detach()"
        )
    inputs = [x for x in tensors if x.requires_grad]
    grads = iter(torch.autograd.grad(j, inputs, retain_graph=retain_graph, allow_unused=True))
    return [next(grads) if x.requires_grad else None for x in tensors]


def _norm(grads: list[Tensor | None]) -> float | None:
    parts = [float(grad.detach().double().norm()) for grad in grads if grad is not None]
    return math.hypot(*parts) if parts else None


def _ratio(first: float, last: float) -> float:
    if not (math.isfinite(first) and math.isfinite(last)):
        return math.nan
    return first / last if last else math.inf if first else 0.0


@dataclass
class CellRun:
    """One run of one cell: its states in the order they were computed."""

    name: str
    states: list[State] = field(default_factory=list)
    reverse: bool = False
    lengths: Tensor | None = None


class StepRecorder:
    """Interceptor that runs every cell step by step and records its states."""

    def __init__(self, cells: CellScope):
        self.runs: list[CellRun] = []
        self.skipped: dict[str, str] = {}
        self.cells = cells
        self._thread = threading.get_ident()
        self._current: CellRun | None = None

    def on_sequence(
        self, call: SequenceCall, proceed: Callable[[SequenceCall], RecurrenceResult]
    ) -> RecurrenceResult:
        lengths = None if call.lengths is None else call.lengths.reshape(-1)
        self._current = CellRun(self.cells.name(call.weights.u), [], call.reverse, lengths)
        self.runs.append(self._current)
        try:
            return proceed(replace(call, backend="reference"))
        finally:
            self._current = None

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], CellStep]) -> CellStep:
        step = proceed(call)
        run = self._current
        if run is None:
            self.runs.append(run := CellRun(self.cells.name(call.weights.u)))
        run.states.append(step.state)
        return step

    def on_torch_module(
        self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any
    ) -> Any:
        if threading.get_ident() != self._thread:  # another run of the same model
            return out
        if reason := torch_recurrent.refusal(module):
            self.skipped[path] = reason
            return out
        with self.cells.rerun_as(path, module):
            return torch_recurrent.rerun(module, *args, **kwargs)

    @property
    def all_states(self) -> list[Tensor]:
        """Every state tensor, by run and time."""
        return [s for run in self.runs for state in run.states for s in state]

    def norms(self, grads: list[Tensor | None]) -> dict[str, tuple[Tensor, ...]]:
        """‖∂J/∂s‖ per state tensor of each cell, (batch, time); `grads` are of `all_states`."""

        def norm(state: Tensor, grad: Tensor | None) -> Tensor:
            grad = torch.zeros_like(state) if grad is None else grad
            return grad.detach().reshape(-1, grad.shape[-1]).norm(dim=-1)

        remaining, norms = iter(grads), {}
        for run in self.runs:
            times = [tuple(norm(s, next(remaining)) for s in state) for state in run.states]
            rows = [torch.stack(values, 1) for values in zip(*times, strict=True)]
            if run.reverse:
                rows = [reverse_sequences(row[..., None], run.lengths)[..., 0] for row in rows]
            # runs of another batch size than the last one belong to another input
            same = [old for old in norms.get(run.name, []) if len(old[0]) == len(rows[0])]
            norms[run.name] = [*same, rows]
        return {
            name: tuple(torch.cat(rows, 1) for rows in zip(*runs, strict=True))
            for name, runs in norms.items()
        }
