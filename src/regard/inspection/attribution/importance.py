"""Importance of each head to a loss: by gradient in one backward pass, or by exact ablation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import ModuleTracker, check_glob, matches
from regard.inspection.edits.heads import drop_head
from regard.inspection.edits.what_if import what_if
from regard.inspection.record.look import patched
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.tables import format_table

if TYPE_CHECKING:
    from rich.console import Group

Loss = Callable[[nn.Module], Tensor]
MAX_SHOWN_HEADS = 16


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeadImportance:
    """Importance of each head, by the name of its attention.

    gradient = ∂loss / ∂gate at gate 1, so dropping a head changes the loss by about -gradient
    ablation = loss without the head - loss, exactly

    >>> result = HeadImportance(loss=2.0, gradient={"a": torch.tensor([[-1.0, 0.5], [-1.0, -0.5]])})
    >>> result.sensitivity["a"]  # Σ over sequences of |gradient|
    tensor([2., 1.])
    """

    loss: float
    gradient: dict[str, Float[Tensor, "batch head"]]  # one gate per sequence and head
    ablation: dict[str, Float[Tensor, " head"]] | None = None

    @property
    def sensitivity(self) -> dict[str, Float[Tensor, " head"]]:
        """The sensitivity of Michel et al. (2019): Σ over sequences of |∂loss / ∂gate|."""
        return {name: g.abs().sum(0) for name, g in self.gradient.items()}

    @property
    def first_order(self) -> dict[str, Float[Tensor, " head"]]:
        """Loss change from dropping each head, if the loss were linear in its gate."""
        return {name: -g.sum(0) for name, g in self.gradient.items()}

    def ranking(self) -> list[tuple[str, int]]:
        """All heads, the most important first: by ablation if known, else by sensitivity.

        >>> result = HeadImportance(loss=2.0, gradient={"a": torch.tensor([[-1.0, 0.5]])})
        >>> result.ranking()
        [('a', 0), ('a', 1)]
        """
        scores = self.sensitivity if self.ablation is None else self.ablation
        heads = [(name, head) for name, x in scores.items() for head in range(len(x))]
        return sorted(heads, key=lambda pair: -float(scores[pair[0]][pair[1]]))

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("site", box=None, pad_edge=False)
        for name in ("head", "Σ|∂loss/∂gate|", "first-order Δloss", "exact Δloss"):
            table.add_column(name, justify="right")
        ranking = self.ranking()
        for name, head in ranking[:MAX_SHOWN_HEADS]:
            exact = "" if self.ablation is None else f"{self.ablation[name][head]:+.5f}"
            sizes = f"{self.sensitivity[name][head]:.5f}", f"{self.first_order[name][head]:+.5f}"
            table.add_row(Text(name), str(head), *sizes, exact)
        more = f", the first {MAX_SHOWN_HEADS}" if len(ranking) > MAX_SHOWN_HEADS else ""
        return Group(Text(f"{len(ranking)} heads, loss {self.loss:.5f}{more}"), table)

    def __repr__(self) -> str:
        return format_table(self.__rich__())


def head_importance(
    model: nn.Module,
    loss: Loss,
    at: str = "*",
    *,
    exact: bool = False,
    progress: bool = False,
) -> HeadImportance:
    """Importance of each head to a loss (Michel et al. 2019), from one backward pass.

    out_h → gate_h · out_h,   sensitivity_h = |∂loss / ∂gate_h| at gate_h = 1

    The gradient describes small changes of one gate; `exact` also drops each head. Interactions
    between heads are in neither.

    Args:
        model: The model.
        loss: Runs the model it gets and returns a scalar; a sum over sequences, not a mean, gives
            gradients per sequence.
        at: Glob over the names or paths of attention modules.
        exact: Also run the model once per head, with that head dropped.
        progress: Show a progress bar.

    >>> layer, x = rg.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4)
    >>> result = rg.inspection.head_importance(layer, lambda layer: layer(x).sum(), exact=True)
    >>> exact, linear = result.ablation, result.first_order  # equal, as a sum is linear in a gate
    >>> torch.allclose(exact["MultiHeadAttention"], linear["MultiHeadAttention"], atol=1e-5)
    True
    """
    check_glob("at", at)
    with patched(model) as tracker:
        gating = _HeadGates(tracker, at)
        with intercepting(gating, tracker, other_threads=False), torch.enable_grad():
            value = loss(model)
            _check_loss(value)
    if not gating.gates:
        raise LookError(f"at: needs an attention that ran, got {at!r}; try '*'")
    gates = list(gating.gates.values())
    grads = torch.autograd.grad(value, gates, allow_unused=True, materialize_grads=True)
    gradient = dict(zip(gating.gates, grads, strict=True))
    result = HeadImportance(loss=float(value.detach()), gradient=gradient)
    return replace(result, ablation=_ablate(model, loss, result, progress)) if exact else result


class _HeadGates:
    """Interceptor that multiplies each head output by a gate of 1 per sequence and head."""

    def __init__(self, tracker: ModuleTracker, at: str):
        self.tracker, self.at = tracker, at
        self.gates: dict[str, Tensor] = {}

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        caller = self.tracker.caller
        if not matches(self.at, caller.name, caller.path):
            return out, lse
        size = out.shape[:-3].numel(), out.shape[-3]
        if caller.name not in self.gates:
            ones = torch.ones(size, device=out.device, dtype=out.dtype)
            self.gates[caller.name] = ones.requires_grad_()
        gate = self.gates[caller.name]
        if gate.shape != size:
            raise ShapeError(
                f"loss: needs batches of one size, got {size[0]} sequences after {len(gate)}; "
                "try one call of the model"
            )
        return out * gate.view(*out.shape[:-2], 1, 1), lse


def _ablate(
    model: nn.Module, loss: Loss, result: HeadImportance, progress: bool
) -> dict[str, Tensor]:
    heads = [(name, head) for name, g in result.gradient.items() for head in range(g.shape[-1])]
    changes = {name: g.new_zeros(g.shape[-1]) for name, g in result.gradient.items()}
    with _progress_bar(len(heads), progress) as step, torch.no_grad():
        for name, head in heads:
            with what_if(model, drop_head(_escape_glob(name), head)):
                changes[name][head] = float(loss(model)) - result.loss
            step()
    return changes


def _escape_glob(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


@contextmanager
def _progress_bar(total: int, progress: bool) -> Iterator[Callable[[], None]]:
    if not progress:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("dropping each head", total=total)
        yield lambda: bar.advance(task)


def _check_loss(value: Tensor) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"loss: needs to return a scalar, got {got}; try .sum()")
    if not value.requires_grad:
        raise ShapeError(
            "loss: needs to require a gradient, got a detached one; try without no_grad"
        )
