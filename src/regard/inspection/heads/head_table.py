"""Every head typed, with the numbers behind the word."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from regard.errors import LookError, ShapeError
from regard.inspection.heads.head_types import HeadRow, Thresholds, classify_head
from regard.inspection.heads.measures import measure_heads
from regard.inspection.heads.offsets import offset_weights
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site

TABLE_COLUMNS = (
    "self_share",
    "previous_share",
    "next_share",
    "local_share",
    "sink_share",
    "peak",
    "normalized_entropy",
    "mean_distance",
)


@dataclass(frozen=True)
class HeadTable:
    """A table of heads, one `HeadRow` each.

    >>> rows = [HeadRow(site="encoder.0.self", call=0, head=h, query_count=9, type="sink") for h in (0, 1)]
    >>> heads = HeadTable(rows)
    >>> heads.types, heads["encoder.0.self", 1].type
    ({'sink': 2}, 'sink')
    """

    rows: list[HeadRow]

    @property
    def types(self) -> dict[str, int]:
        """How many heads are of each type, the most frequent first."""
        return dict(Counter(row.type for row in self.rows).most_common())

    def of_type(self, head_type: str) -> "HeadTable":  # noqa: A002
        """The heads of one type."""
        return HeadTable([row for row in self.rows if row.type == head_type])

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain data, for a data frame or JSON."""
        return [asdict(row) for row in self.rows]

    def __getitem__(self, at: int | tuple[str, int]) -> HeadRow:
        if isinstance(at, int):
            return self.rows[at]
        found = [row for row in self.rows if (row.site, row.head) == at]
        if not found:
            raise ShapeError(f"at: needs a site and one of its heads, got {at}; try heads.rows")
        return found[0]

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        wide = max([4, *(len(row.site) for row in self.rows)])
        lines = [
            f"{'site':<{wide}}  head  {'type':<12}" + "".join(f"{n:>9}" for n in TABLE_COLUMNS)
        ]
        for row in self.rows:
            numbers = "".join(f"{getattr(row, name):9.2f}" for name in TABLE_COLUMNS)
            lines.append(f"{row.site:<{wide}}  {row.head:>4}  {row.type:<12}{numbers}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from regard.inspection import notebook

        return notebook.heads_html(self)


def classify_heads(
    sites: Iterable[Site],
    *,
    separators: Collection[str] = (),
    probe: HeadTable | None = None,
    thresholds: Thresholds | None = None,
) -> HeadTable:
    """What each head of a sight does, in a word, with the numbers that decided it.

    `separators` are tokens such as "[SEP]" or "."; `probed` is what `probe_induction` found for the model.

    >>> table = torch.tensor([[9.0, 0.0, 0.0]]) * 9      # all for the key before
    >>> q = k = torch.zeros(8, 2)
    >>> bias = rg.Toeplitz(table) + rg.ALiBi(torch.tensor([9.0]))
    >>> classify_heads([rg.make_site(q, k, bias=bias)])[0].type
    'previous'
    """
    limits = thresholds or Thresholds()
    rows = [
        row
        for site in join_all_calls(sites)
        for row in measure_heads(site, frozenset(separators), limits)
    ]
    if probe is not None:
        found = {(row.site, row.head): row for row in probe}
        rows = [_with_probe(row, found.get((row.site, row.head))) for row in rows]
    return HeadTable([_named(row, limits) for row in rows])


@torch.no_grad()
def probe_induction(
    model: nn.Module,
    vocab: int,
    *,
    length: int = 32,
    batch: int = 4,
    seed: int = 0,
    thresholds: Thresholds | None = None,
) -> HeadTable:
    """Which heads of a language model copy: it reads random tokens twice, [x_1 … x_n x_1 … x_n].

    induction = mean weight of the second x_t on the first x_{t+1};   duplicate: on the first x_t

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=50)).eval()
    >>> len(probe_induction(model, vocab=50, length=8))
    8
    """
    from regard.inspection.record.look import look

    if length < 2 or vocab < 2:
        raise ShapeError(f"length, vocab: need 2 or more, got {length} and {vocab}")
    start = torch.Generator().manual_seed(seed)
    once = torch.randint(vocab, (batch, length), generator=start)
    tokens = torch.cat([once, once], 1)
    device = next((p.device for p in model.parameters()), tokens.device)
    with look(model) as sight:
        model(tokens.to(device))
    limits, rows = thresholds or Thresholds(), []
    for site in sight:
        copied = offset_weights(site, -length, 1 - length)[:, :, length:].mean((0, 2))
        for row, (duplicate, induction) in zip(
            measure_heads(site, frozenset(), limits), copied.tolist(), strict=True
        ):
            rows.append(_named(replace(row, duplicate=duplicate, induction=induction), limits))
    return HeadTable(rows)


def join_all_calls(sites: Iterable[Site]) -> list[Site]:
    """Each attention once, the calls of a generated text joined."""
    if not isinstance(sites, Sight):
        return list(sites)
    whole = []
    for name in sites.names:
        calls = sites.calls(name)
        try:
            whole += calls if len(calls) == 1 else [sites.join(name)]
        except LookError:  # calls that have nothing to do with each other: a row for each
            whole += calls
    return whole


def _named(row: HeadRow, limits: Thresholds) -> HeadRow:
    word, reason = classify_head(row, limits)
    return replace(row, type=word, reason=reason)


def _with_probe(row: HeadRow, found: HeadRow | None) -> HeadRow:
    if found is None:
        return row
    return replace(row, induction=found.induction, duplicate=found.duplicate)
