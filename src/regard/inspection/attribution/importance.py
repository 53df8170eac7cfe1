"""How much each head matters: all heads in one backward pass, and one at a time, exactly."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.edits.base import CallSite, drop_head
from regard.inspection.edits.what_if import matches_glob, what_if
from regard.inspection.record.look import patched
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.tables import format_table

if TYPE_CHECKING:
    from rich.console import Group

Loss = Callable[[nn.Module], Tensor]
MAX_SHOWN_HEADS = 16  # heads in the table


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeadImportance:
    """What each head is worth, by the name of its attention.

    gradient = ∂loss / ∂gate at gate 1, so dropping a head costs about -gradient
    dropped = loss without the head - loss, exactly

    >>> found = HeadImportance(loss=2.0, gradient={"a": torch.tensor([[-1.0, 0.5], [-1.0, -0.5]])})
    >>> found.sensitivity["a"]  # Σ over sequences of |gradient|
    tensor([2., 1.])
    """

    loss: float
    gradient: dict[str, Float[Tensor, "batch head"]]  # of each sequence's own gate
    ablation: dict[str, Float[Tensor, " head"]] | None = None

    @property
    def sensitivity(self) -> dict[str, Float[Tensor, " head"]]:
        """The sensitivity of Michel et al. (2019): Σ over sequences of |∂loss / ∂gate|."""
        return {name: g.abs().sum(0) for name, g in self.gradient.items()}

    @property
    def first_order(self) -> dict[str, Float[Tensor, " head"]]:
        """What dropping each head would cost if the loss were straight in its gate."""
        return {name: -g.sum(0) for name, g in self.gradient.items()}

    def ranking(self) -> list[tuple[str, int]]:
        """Every head, the most important first: by exact cost if known, else by sensitivity.

        >>> found = HeadImportance(loss=2.0, gradient={"a": torch.tensor([[-1.0, 0.5]])})
        >>> found.ranking()
        [('a', 0), ('a', 1)]
        """
        by = self.sensitivity if self.ablation is None else self.ablation
        heads = [(name, head) for name, worth in by.items() for head in range(len(worth))]
        return sorted(heads, key=lambda at: -float(by[at[0]][at[1]]))

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("site", box=None, pad_edge=False)
        for name in ("head", "Σ|∂loss/∂gate|", "predicted Δloss", "exact Δloss"):
            table.add_column(name, justify="right")
        ranked = self.ranking()
        for name, head in ranked[:MAX_SHOWN_HEADS]:
            exact = "" if self.ablation is None else f"{self.ablation[name][head]:+.5f}"
            sizes = f"{self.sensitivity[name][head]:.5f}", f"{self.first_order[name][head]:+.5f}"
            table.add_row(Text(name), str(head), *sizes, exact)
        more = f", the first {MAX_SHOWN_HEADS}" if len(ranked) > MAX_SHOWN_HEADS else ""
        return Group(Text(f"{len(ranked)} heads, loss {self.loss:.5f}{more}"), table)

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
    """What each head is worth to a loss, in one backward pass for all of them.

    out_h → gate_h · out_h,   importance_h = |∂loss / ∂gate_h| at gate_h = 1

    `loss` runs the model it is given and returns a number; sum over sequences rather than average,
    if single sequences are to be weighed. With `exact` the model also runs once for each head, with
    that head dropped. The gradient sees small changes of one gate: what happens far from 1 is in
    the exact table, and what two heads do for each other in neither.

    >>> layer, x = rg.nn.MultiHeadAttention(4, 2), torch.randn(1, 3, 4)
    >>> found = rg.head_importance(layer, lambda layer: layer(x).sum(), exact=True)
    >>> torch.allclose(  # a sum is straight in each gate
    ...     found.ablation["MultiHeadAttention"], found.first_order["MultiHeadAttention"], atol=1e-5
    ... )
    True
    """
    with patched(model) as running:
        gates = _Gates(running, at)
        with intercepting(gates, running, other_threads=False), torch.enable_grad():
            value = loss(model)
            _check_loss(value)
    if not gates.made:
        raise LookError(f"at: needs an attention that ran, got {at!r}; try '*'")
    slopes = torch.autograd.grad(value, list(gates.made.values()), allow_unused=True)
    pairs = zip(gates.made.items(), slopes, strict=True)
    gradient = {name: torch.zeros_like(one) if g is None else g for (name, one), g in pairs}
    found = HeadImportance(loss=float(value.detach()), gradient=gradient)
    return replace(found, ablation=_drop_each(model, loss, found, progress)) if exact else found


class _Gates:
    """Stands at the door with a gate of 1 on the output of each head of each sequence."""

    def __init__(self, running: ModuleTracker, at: str):
        self.running, self.at = running, at
        self.made: dict[str, Tensor] = {}

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        out, lse = proceed(call)
        caller = self.running.caller
        if not matches_glob(self.at, CallSite(caller.path, caller.name)):
            return out, lse
        size = out.shape[:-3].numel(), out.shape[-3]
        if caller.name not in self.made:
            one = torch.ones(size, device=out.device, dtype=out.dtype)
            self.made[caller.name] = one.requires_grad_()
        gate = self.made[caller.name]
        if gate.shape != size:
            raise ShapeError(
                f"loss: needs batches of one size, got {size[0]} sequences after {len(gate)}; "
                "try one call of the model"
            )
        return out * gate.view(*out.shape[:-2], 1, 1), lse


def _drop_each(
    model: nn.Module, loss: Loss, found: HeadImportance, progress: bool
) -> dict[str, Tensor]:
    heads = [(name, head) for name, g in found.gradient.items() for head in range(g.shape[-1])]
    cost = {name: g.new_zeros(g.shape[-1]) for name, g in found.gradient.items()}
    with _counted(len(heads), progress) as step, torch.no_grad():
        for name, head in heads:
            with what_if(model, drop_head(_as_glob(name), head)):
                cost[name][head] = float(loss(model)) - found.loss
            step()
    return cost


def _as_glob(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


@contextmanager
def _counted(total: int, progress: bool) -> Iterator[Callable[[], None]]:
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
        raise ShapeError(f"loss: needs to return one number, got {got}; try .sum()")
    if not value.requires_grad:
        raise ShapeError("loss: needs to keep its graph, got a number without; try without no_grad")
