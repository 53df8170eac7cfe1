"""Importance of each head to a loss: by gradient in one backward pass, or by exact ablation."""

import glob
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ShapeError, counted
from regard.inspection.adapters.activation_point import ActivationPoint, hook_activations
from regard.inspection.adapters.activation_points import find_activations
from regard.inspection.adapters.block_stacks import PrefixReplay, is_close
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.attribution.propagation import Scalar, run_with_gradient
from regard.inspection.edits.weights import drop_head
from regard.inspection.edits.what_if import what_if
from regard.ops.intercept import AttentionCall, AttentionResult
from regard.tables import text_table

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
        """All heads, the most important first: by ablation if known, else by sensitivity."""
        scores = self.sensitivity if self.ablation is None else self.ablation
        heads = [(name, head) for name, x in scores.items() for head in range(len(x))]
        return sorted(heads, key=lambda pair: -float(scores[pair[0]][pair[1]]))

    def __repr__(self) -> str:
        ranking, rows = self.ranking(), []
        for name, head in ranking[:MAX_SHOWN_HEADS]:
            exact = "" if self.ablation is None else f"{self.ablation[name][head]:+.5f}"
            sizes = f"{self.sensitivity[name][head]:.5f}", f"{self.first_order[name][head]:+.5f}"
            rows.append((name, head, *sizes, exact))
        more = f", the first {MAX_SHOWN_HEADS}" if len(ranking) > MAX_SHOWN_HEADS else ""
        numbers = ("head", "Σ|∂loss/∂gate|", "first-order Δloss", "exact Δloss")
        table = text_table(("site", *numbers), rows, right=numbers)
        return f"{counted(len(ranking), 'head')}, loss {self.loss:.5f}{more}\n{table}"


def head_importance(
    model: nn.Module, loss: Scalar, at: str = "*", *, exact: bool = False, progress: bool = False
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
    gates: dict[str, Tensor] = {}  # of 1, one per sequence and head
    writers = _Writers(model)

    def apply_gate(call: AttentionCall, result: AttentionResult, caller: Caller) -> Tensor:
        out = result[0]
        size = out.shape[:-3].numel(), out.shape[-3]
        if caller.name not in gates:
            gates[caller.name] = out.new_ones(size).requires_grad_()
        gate = gates[caller.name]
        if gate.shape != size:
            raise ShapeError(
                f"loss: needs batches of one size, got {size[0]} sequences after {len(gate)}; "
                "try one call of the model"
            )
        writers.paths[caller.name] = caller.path
        writers.latest = caller, out
        return out * gate.view(*out.shape[:-2], 1, 1)

    with writers.watching() if exact else nullcontext():
        value = run_with_gradient(model, loss, "loss", at, apply_gate)
    grads = torch.autograd.grad(
        value, list(gates.values()), allow_unused=True, materialize_grads=True
    )
    gradient = dict(zip(gates, grads, strict=True))
    result = HeadImportance(loss=float(value.detach()), gradient=gradient)
    if not exact:
        return result
    with torch.no_grad():
        return replace(result, ablation=_ablate(model, loss, gradient, writers, progress))


class _Writers:
    """The output projections that read the heads of an attention as they are.

    There a hook drops a head as `drop_head` does, without a look at every call of the model.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.paths: dict[str, str] = {}  # of the attentions, by name
        self.latest: tuple[Caller, Tensor] | None = None  # attention and its output
        self.points: dict[str, ActivationPoint] = {}  # by the name of the attention
        self._others: set[str] = set()  # attentions with something in between

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Compare what each projection reads with the output of the attention before it."""

        points = find_activations(self.model)

        def compare(name: str, x: Tensor) -> None:
            point = points[name]
            if self.latest is None:  # it reads something beside the attention too
                self._others |= {name for name, p in self.points.items() if p is point}
                return
            (caller, out), self.latest = self.latest, None
            if out.ndim == 4 and torch.equal(x, out.transpose(1, 2)):
                self.points[caller.name] = point
            else:
                self._others.add(caller.name)

        heads = (point for name, point in points.items() if name.endswith(".heads"))
        with hook_activations(heads, compare):
            yield
        for name in self._others:
            self.points.pop(name, None)

    @contextmanager
    def dropping(self, name: str, head: int) -> Iterator[None]:
        """Run the model without one head."""
        if name not in self.points:
            with what_if(self.model, drop_head(glob.escape(name), head)):
                yield
            return

        def drop(x: Tensor) -> Tensor:
            x = x.clone()
            x[:, :, head] = 0
            return x

        with self.points[name].hook(drop):
            yield


def _ablate(
    model: nn.Module, loss: Scalar, gradient: dict[str, Tensor], writers: _Writers, progress: bool
) -> dict[str, Tensor]:
    """The change of the loss from dropping each head; runs share the blocks before it."""
    from rich.progress import track

    changes = {name: g.new_zeros(g.shape[-1]) for name, g in gradient.items()}
    replay: PrefixReplay | None = PrefixReplay(model)
    with replay.recording():
        whole = torch.as_tensor(loss(model))
    for name in track(changes, "dropping each head", transient=True, disable=not progress):
        path = writers.paths[name]
        if replay is not None and replay.paths_before(path):
            with replay.skipping(path):
                same = is_close(torch.as_tensor(loss(model)), whole)
            replay = replay if same else None
        for head in range(len(changes[name])):
            skipping = nullcontext() if replay is None else replay.skipping(path)
            with skipping, writers.dropping(name, head):
                changes[name][head] = loss(model) - whole
    return changes
