"""Model outputs before and after edits, compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.edits.base import Edit
from regard.ops.maybe_none import MaybeNone
from regard.ops.terms import upcast
from regard.tables import format_table

if TYPE_CHECKING:
    from rich.console import Group

MAX_SHOWN_POSITIONS = 12  # in the table: the most changed


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Logits before and after edits, with their differences at every position.

    kl = Σ_x p(x) log(p(x) / p'(x)), p before and p' after;   loss = -log p(label)

    >>> p, new = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.8]]).log()
    >>> comparison = Comparison(p, new, labels=torch.tensor([0]))
    >>> comparison.kl  # ½ log(½ / 0.2) + ½ log(½ / 0.8)
    tensor([0.2231])
    >>> comparison.loss  # log(½ / 0.2)
    tensor([0.9163])
    """

    before: Float[Tensor, "*batch vocab"]
    after: Float[Tensor, "*batch vocab"]
    edits: Sequence[Edit | ActivationEdit] = ()
    labels: Int[Tensor, "*batch"] | None = None
    id_to_token: Callable[[int], str] | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels.shape != self.before.shape[:-1]:
            raise ShapeError(
                f"labels: needs one per position, {tuple(self.before.shape[:-1])}, "
                f"got {tuple(self.labels.shape)}"
            )

    @property
    def delta(self) -> Float[Tensor, "*batch vocab"]:
        """Difference of the logits."""
        return upcast(self.after) - upcast(self.before)

    @property
    def kl(self) -> Float[Tensor, "*batch"]:
        """KL divergence of the predictions, in nats."""
        old, new = (upcast(x).log_softmax(-1) for x in (self.before, self.after))
        gap = torch.where(old == -torch.inf, 0, old - new)  # 0 log 0 = 0
        return (old.exp() * gap).sum(-1).clamp(min=0)

    @property
    def argmax_changed(self) -> Tensor:
        """Where the most likely token changed."""
        return self.before.argmax(-1) != self.after.argmax(-1)

    @property
    def loss_before(self) -> Float[Tensor, " labelled"] | MaybeNone:
        """-log p(label) before, in the order of labels[labels >= 0]; None without labels."""
        return self._loss(self.before)

    @property
    def loss_after(self) -> Float[Tensor, " labelled"] | MaybeNone:
        """-log p(label) after."""
        return self._loss(self.after)

    @property
    def loss(self) -> Float[Tensor, " labelled"] | MaybeNone:
        """Increase of the loss per labelled position; the table shows its mean."""
        before, after = self.loss_before, self.loss_after
        return None if before is None or after is None else after - before

    def top(self, k: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The k most likely tokens: ids and probabilities before, ids and probabilities after."""
        k = min(k, self.before.shape[-1])
        old = upcast(self.before).softmax(-1).topk(k, -1)
        new = upcast(self.after).softmax(-1).topk(k, -1)
        return old.indices, old.values, new.indices, new.values

    def _loss(self, logits: Tensor) -> Tensor | None:
        if self.labels is None:
            return None
        counted = self.labels >= 0
        return F.cross_entropy(upcast(logits)[counted], self.labels[counted], reduction="none")

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        kl, deltas = self.kl, self.delta.abs().amax(-1).flatten()
        tops = [x.reshape(-1, x.shape[-1]).tolist() for x in self.top(3)]
        shown = kl.flatten().topk(min(MAX_SHOWN_POSITIONS, kl.numel())).indices.sort().values
        table = Table(box=None, pad_edge=False)
        for name in ("position", "KL", "before", "after", "max |Δlogit|"):
            table.add_column(name, justify="right" if name in ("KL", "max |Δlogit|") else "left")
        text = f"KL {kl.mean():.4f} on average, {kl.max():.4f} at most; "
        text += f"argmax changed at {int(self.argmax_changed.sum())} of {kl.numel()}"
        losses = None
        if self.loss is not None and self.labels is not None:
            table.add_column("Δloss", justify="right")
            numbers = iter(self.loss.tolist())
            losses = [f"{next(numbers):+.4f}" if x >= 0 else "" for x in self.labels.flatten()]
            text += f"; loss {self.loss.mean():+.4f}" if len(self.loss) else ""
        for i in shown.tolist():
            position = torch.unravel_index(torch.tensor(i), kl.shape)
            row = [
                " ".join(str(int(x)) for x in position),
                f"{kl.flatten()[i]:.4f}",
                self._format_tokens(tops[0][i], tops[1][i]),
                self._format_tokens(tops[2][i], tops[3][i]),
                f"{deltas[i]:.3f}",
                *([] if losses is None else [losses[i]]),
            ]
            table.add_row(*map(Text, row))  # Text: a token may look like rich markup
        edits = ", ".join(map(str, self.edits)) or "no edit"
        return Group(Text(edits), Text(text), table)

    def _format_tokens(self, ids: list[int], p: list[float]) -> str:
        to_token = self.id_to_token or str
        return "  ".join(f"{to_token(i)} {x:.2f}" for i, x in zip(ids, p, strict=True))

    def __repr__(self) -> str:
        return format_table(self.__rich__())
