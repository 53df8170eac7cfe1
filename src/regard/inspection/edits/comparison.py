"""What an edit did to a model's answer, as data and as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.edits.base import Edit
from regard.ops.terms import upcast
from regard.tables import format_table

if TYPE_CHECKING:
    from rich.console import Group

MAX_SHOWN_POSITIONS = 12  # positions in the table: the most changed, in order


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The logits before and after, and what follows from them at every position.

    kl = Σ_x p(x) log(p(x) / p'(x)), p before and p' after;   loss = -log p(label)

    >>> p, new = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.8]]).log()
    >>> change = Comparison(p, new, labels=torch.tensor([0]))
    >>> change.kl  # ½ log(½ / 0.2) + ½ log(½ / 0.8)
    tensor([0.2231])
    >>> change.loss  # log(½ / 0.2)
    tensor([0.9163])
    """

    before: Float[Tensor, "*batch vocab"]
    after: Float[Tensor, "*batch vocab"]
    edits: Sequence[Edit] = ()
    labels: Int[Tensor, "*batch"] | None = None
    id_to_token: Callable[[int], str] | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels.shape != self.before.shape[:-1]:
            raise ShapeError(
                f"labels: needs one for each position, {tuple(self.before.shape[:-1])}, "
                f"got {tuple(self.labels.shape)}"
            )

    @property
    def delta(self) -> Float[Tensor, "*batch vocab"]:
        """How far each logit moved."""
        return upcast(self.after) - upcast(self.before)

    @property
    def kl(self) -> Float[Tensor, "*batch"]:
        """How far the prediction moved, in nats."""
        old, new = (upcast(x).log_softmax(-1) for x in (self.before, self.after))
        gap = torch.where(old == -torch.inf, 0, old - new)  # 0 log 0 = 0
        return (old.exp() * gap).sum(-1).clamp(min=0)

    @property
    def argmax_changed(self) -> Tensor:
        """Where another token comes first now."""
        return self.before.argmax(-1) != self.after.argmax(-1)

    @property
    def loss_before(self) -> Float[Tensor, " labelled"] | None:
        """-log p of each label before, in the order of labels[labels >= 0]; None without labels."""
        return self._loss(self.before)

    @property
    def loss_after(self) -> Float[Tensor, " labelled"] | None:
        """-log p of each label after."""
        return self._loss(self.after)

    @property
    def loss(self) -> Float[Tensor, " labelled"] | None:
        """By how much the loss of each labelled position grew; its mean is the one printed."""
        before, after = self.loss_before, self.loss_after
        return None if before is None or after is None else after - before

    def top(self, k: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The likeliest tokens: ids and probabilities before, ids and probabilities after.

        >>> p, new = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.2, 0.2, 0.6]]).log()
        >>> before, _, after, share = Comparison(p, new).top(1)
        >>> before, after, share
        (tensor([[0]]), tensor([[2]]), tensor([[0.6000]]))
        """
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

        kl, top = self.kl.flatten(), self.top(3)
        ids_before, p_before, ids_after, p_after = (x.flatten(0, -2) for x in top)
        most = kl.topk(min(MAX_SHOWN_POSITIONS, kl.numel())).indices.sort().values.tolist()
        table = Table(box=None, pad_edge=False)
        for name in ("position", "KL", "before", "after", "max |Δlogit|"):
            table.add_column(name, justify="right" if name in ("KL", "max |Δlogit|") else "left")
        if self.loss is not None:
            table.add_column("Δloss", justify="right")
        far, losses = self.delta.abs().amax(-1).flatten(), self._losses()
        for at in most:
            row = [
                self._position(at),
                f"{kl[at]:.4f}",
                self._say(ids_before[at], p_before[at]),
                self._say(ids_after[at], p_after[at]),
                f"{far[at]:.3f}",
            ]
            if losses is not None:
                row.append(losses[at])
            table.add_row(*map(Text, row))  # as text: a token may look like rich's markup
        edits = ", ".join(map(str, self.edits)) or "no edit"
        return Group(Text(edits), Text(self._summary()), table)

    def _summary(self) -> str:
        kl = self.kl
        told = f"KL {kl.mean():.4f} on average, {kl.max():.4f} at most; "
        told += f"another first token at {int(self.argmax_changed.sum())} of {kl.numel()}"
        if self.loss is not None and len(self.loss):
            told += f"; loss {self.loss.mean():+.4f}"
        return told

    def _losses(self) -> list[str] | None:
        """The loss of every position as it is written, empty where there is no label."""
        if self.loss is None or self.labels is None:
            return None
        left = iter(self.loss.tolist())
        return [f"{next(left):+.4f}" if label >= 0 else "" for label in self.labels.flatten()]

    def _position(self, at: int) -> str:
        place = torch.unravel_index(torch.tensor(at), self.kl.shape)
        return " ".join(str(int(i)) for i in place)

    def _say(self, ids: Tensor, p: Tensor) -> str:
        name = self.id_to_token or str
        pairs = zip(ids.tolist(), p.tolist(), strict=True)
        return "  ".join(f"{name(token)} {share:.2f}" for token, share in pairs)

    def __repr__(self) -> str:
        return format_table(self.__rich__())
