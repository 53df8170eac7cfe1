"""Heads of linear mixers as rows of a table: means of what their maps, gates and states show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.inspection.sites.mixer_site import CONVOLUTION_STATISTICS, MixerSite, first_heads
from regard.ops.mixers.statistics import MIXER_STATISTICS
from regard.tables import html_table, text_table

MAX_HEADS = 64  # of one mixer in the table: a recurrence per channel has thousands


@dataclass(frozen=True)
class MixerTable:
    """One row per head of each linear mixer: mean statistics of its signed map and its gates.

    `hidden` counts the heads beyond the first 64 of a mixer, which have no row.

    >>> MixerTable([{"site": "layers.0.mixer", "head": 0, "kind": "delta rule", "reach": 1.5}])
    site            head  kind        reach
    layers.0.mixer     0  delta rule   1.50
    """

    rows: list[dict[str, Any]]
    hidden: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts, for a data frame or JSON."""
        return [dict(row) for row in self.rows]

    def texts(self) -> list[list[str]]:
        """The cells as text; empty where a statistic has no meaning."""
        cells = ([row.get(name, "") for name in self.columns] for row in self.rows)
        return [[f"{x:.2f}" if isinstance(x, float) else str(x) for x in row] for row in cells]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        right = [name for name in self.columns if name not in ("site", "kind")]
        more = f"\n… and {self.hidden} more heads" if self.hidden else ""
        return text_table(self.columns, self.texts(), right=right) + more

    def _repr_html_(self) -> str:
        more = f"<p>… and {self.hidden} more heads</p>" if self.hidden else ""
        return html_table(self.columns, self.texts()) + more


@torch.no_grad()
def measure_mixers(sites: Sequence[MixerSite]) -> MixerTable:
    """The means over batch and tokens of each statistic, per head; half-lives by their median."""
    rows: list[dict[str, Any]] = []
    for site in sites:
        shown, survey = range(min(site.heads, MAX_HEADS)), first_heads(site, MAX_HEADS).survey()
        numbers = {name: getattr(survey, name) for name in MIXER_STATISTICS}
        if site.kind.startswith("convolution"):
            numbers = {name: numbers[name] for name in CONVOLUTION_STATISTICS}
        for head in shown:
            row: dict[str, Any] = {"site": name_of_call(site), "head": head, "kind": site.kind}
            for name, x in numbers.items():
                x = x[:, head].double().flatten()
                row[name] = float(x.median() if name == "half_life" else x.mean())
            rows.append(row)
    return MixerTable(rows, sum(max(0, site.heads - MAX_HEADS) for site in sites))


def name_of_call(site: MixerSite) -> str:
    """The name of a site, with its call beyond the first (Zamba calls one mixer twice)."""
    return site.name + (f" (call {site.call})" if site.call else "")
