"""The result of a patching sweep: a metric for every patched place."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.tables import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SHOWN = 12


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PatchingResult:
    """The metric of the corrupt run with one activation of the clean run put in, for every place.

    `effect` is 0 where patching changes nothing and 1 where it restores the clean metric.

    >>> result = PatchingResult(
    ...     axes=("layer", "position"), labels=(["decoder.0", "decoder.1"], ["a", "b"]),
    ...     values=torch.tensor([[1.0, 2.0], [1.0, 3.0]]), clean=3.0, corrupt=1.0, method="exact",
    ... )  # fmt: skip
    >>> result.effect
    tensor([[0.0000, 0.5000],
            [0.0000, 1.0000]])
    >>> result.top(1)
    [('decoder.1', 'b', 1.0)]
    """

    axes: tuple[str, ...]  # of values: layer, head, position
    labels: tuple[list[str], ...]  # one list per axis
    values: Tensor  # the metric; NaN where it is not computed yet
    clean: float
    corrupt: float
    method: str  # exact, or gradient: a first-order estimate

    @property
    def effect(self) -> Tensor:
        """(value - corrupt) / (clean - corrupt)."""
        return (self.values - self.corrupt) / (self.clean - self.corrupt)

    def top(self, count: int = 10) -> list[tuple]:
        """The places with the largest effect, by absolute value: the label of each axis, effect."""
        flat = self.effect.flatten()
        order = flat.nan_to_num(0).abs().topk(min(count, len(flat))).indices
        rows = []
        for i in order.tolist():
            at = torch.unravel_index(torch.tensor(i), self.values.shape)
            labels = (names[int(k)] for names, k in zip(self.labels, at, strict=True))
            rows.append((*labels, round(float(flat[i]), 4)))
        return rows

    def to_dicts(self) -> list[dict]:
        """One dict per place: its labels, the metric and the effect."""
        rows = []
        effect = self.effect
        for at in torch.cartesian_prod(*(torch.arange(n) for n in self.values.shape)).reshape(
            -1, self.values.ndim
        ):
            index = tuple(at.tolist())
            names = zip(self.axes, self.labels, index, strict=True)
            row: dict = {axis: labels[i] for axis, labels, i in names}
            rows.append(row | {"value": float(self.values[index]), "effect": float(effect[index])})
        return rows

    def draw(self, *, path: str | Path | None = None) -> "Figure":
        """A heat map of the effects; a head axis becomes rows `layer head`.

        >>> result = PatchingResult(
        ...     axes=("layer", "position"), labels=(["0"], ["a", "b"]),
        ...     values=torch.tensor([[1.0, 2.0]]), clean=3.0, corrupt=1.0, method="exact",
        ... )  # fmt: skip
        >>> result.draw().axes[0].get_xlabel()
        'position'
        """
        from regard.inspection.figures.effects import draw_effects

        labels, effect = list(self.labels), self.effect
        if effect.ndim == 1:
            effect, labels = effect[:, None], [labels[0], [""]]
        if effect.ndim == 3:
            rows = [f"{layer} {head}" for layer in labels[0] for head in labels[1]]
            effect, labels = effect.flatten(0, 1), [rows, labels[2]]
        y = " and ".join(self.axes[: max(1, len(self.axes) - 1)])
        x = self.axes[-1] if len(self.axes) > 1 else ""
        estimate = ", first-order estimate" if self.method == "gradient" else ""
        title = f"metric {self.corrupt:.3g} (0) → {self.clean:.3g} (1){estimate}"
        return draw_effects(effect, labels[0], labels[1], x, y, title, path=path)

    def __repr__(self) -> str:
        rows = ((*names, f"{effect:+.4f}") for *names, effect in self.top(MAX_SHOWN))
        table = text_table((*self.axes, "effect"), rows, right=["effect"])
        size = " × ".join(str(n) for n in self.values.shape)
        title = f"{size} places, metric {self.corrupt:.4g} corrupt, {self.clean:.4g} clean"
        return f"{title} ({self.method})\n{table}"
