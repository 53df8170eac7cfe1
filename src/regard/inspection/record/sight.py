"""A sight: all recorded attentions and activations of one or several forward passes."""

import fnmatch
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from html import escape
from pathlib import Path
from typing import Any

from regard.errors import LookError, counted
from regard.inspection.heads.head_table import HeadTable, Thresholds
from regard.inspection.heads.measures import classify_heads
from regard.inspection.heads.mixer_table import MixerTable, measure_mixers
from regard.inspection.record.activations import Activations, pick_call
from regard.inspection.record.routers import Routers, find_routers, join_steps
from regard.inspection.sites.labels import label_sites, parse_tokens
from regard.inspection.sites.mixer_site import MixerSite, join_mixers, label_mixers
from regard.inspection.sites.site import Site, Tokens
from regard.inspection.sites.splice import join_calls
from regard.tables import html_table

OVER_LIMIT = "over max_bytes="  # in the reasons of `skipped`


class Sight:
    """Every recorded attention; `skipped` maps what could not be recorded to the reason.

    `mixers` has the linear mixers: a sight iterates over attentions, and `sight[name]` gets both.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=10)).eval()
    >>> with rg.look(model) as sight:
    ...     _ = model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))
    >>> sight["decoder.1.cross"]
    decoder.1.cross: cross, 4 heads, 2 queries, 3 keys
    """

    def __init__(
        self,
        sites: list[Site] | None = None,
        skipped: dict[str, str] | None = None,
        unmatched: list[str] | None = None,
        mixers: list[MixerSite] | None = None,
    ):
        self.sites: list[Site] = [] if sites is None else sites
        self.mixers: list[MixerSite] = [] if mixers is None else mixers  # linear attention, SSMs
        self.skipped: dict[str, str] = {} if skipped is None else skipped
        self.unmatched: list[str] = [] if unmatched is None else unmatched  # not matched by at=
        self.aliases: dict[str, str] = {}  # of every attention that ran: decoder.3.self, by name
        self.activations = Activations()  # by name, those that look(activations=…) recorded

    @property
    def names(self) -> list[str]:
        """The names of all sites without repetition, in the order of their first call."""
        return list(dict.fromkeys(site.name for site in self.sites))

    @property
    def mixer_names(self) -> list[str]:
        """The names of all linear mixers without repetition."""
        return list(dict.fromkeys(site.name for site in self.mixers))

    @property
    def routers(self) -> Routers:
        """The experts of each token by block, if `activations="*.router.*"` was recorded."""
        names = fnmatch.filter(self.activations, "*.router.*")
        labels = next((x.query_tokens for x in self.sites if x.query_tokens), [])
        return find_routers({x: join_steps(self.activations.calls(x)) for x in names}, labels)

    @property
    def missing(self) -> str:
        """How much `max_bytes=` left out, in one line; empty if nothing.

        >>> rg.Sight([], {"a.1": f"{OVER_LIMIT}9; try at="}).missing
        '1 of 1 attentions missing or incomplete: over max_bytes=9; try at='
        """
        notes = []
        for noun, way, recorded in (
            ("attentions", "try at=", [*self.names, *self.mixer_names]),
            ("activations", "try activations=", list(self.activations)),
        ):
            over = {n: r for n, r in self.skipped.items() if OVER_LIMIT in r and way in r}
            if over:
                reason = next(reversed(over.values()))
                count, reason = len({*recorded, *over}), reason[reason.index(OVER_LIMIT) :]
                notes.append(f"{len(over)} of {count} {noun} missing or incomplete: {reason}")
        return "; ".join(notes)

    @property
    def coverage(self) -> str:
        """How many layers were recorded, and why others were not, in one line; empty if all were.

        >>> site = rg.make_site(*torch.zeros(2, 3, 4), name="layers.1.attn")
        >>> rg.Sight([site], {"layers.0.mixer": "Mamba2Mixer is no attention"}).coverage
        '1 of 2 layers recorded; 1 not: Mamba2Mixer is no attention'
        """
        reasons: dict[str, set[str]] = {}
        names = (*self.names, *self.mixer_names)
        recorded, skipped = {layer_of(name) for name in names}, set()
        for name, reason in self.skipped.items():
            if name not in self.activations and OVER_LIMIT not in reason:
                skipped.add(layer := layer_of(name))
                reasons.setdefault(reason, set()).add(layer)
        if not reasons:
            return ""
        whole, parts = recorded - skipped, recorded & skipped
        line = f"{len(whole)} of {len(recorded | skipped)} layers recorded"
        line += f", {len(parts)} in part" if parts else ""
        return f"{line}; " + "; ".join(f"{len(x)} not: {why}" for why, x in reasons.items())

    @property
    def notes(self) -> str:
        """What tables of heads leave out, in one line: `missing`, `coverage`, linear mixers."""
        count = counted(len(self.mixer_names), "linear mixer")
        mixers = f"{count} in mixer_heads()" if self.mixers else ""
        return "; ".join(filter(None, (self.missing, self.coverage, mixers)))

    def calls(self, name: str) -> list[Any]:
        """All calls of one attention or linear mixer, in order: one per step of a generation.

        >>> site = rg.make_site(*torch.zeros(2, 4, 2))
        >>> len(rg.Sight([site, site]).calls("attention"))
        2
        """
        for sites in (self.sites, self.mixers) if isinstance(name, str) and name else ():
            calls = [x for x in sites if name in (x.name, x.path, self.aliases.get(x.name))]
            if calls:
                return calls
        raise LookError(f"name: needs one of the sites, got {name!r}{self._hint(name)}")

    def join(self, name: str) -> Any:
        """The calls of one attention joined into one site: the whole map of a generated text.

        >>> steps = [rg.make_site(torch.ones(n, 4), torch.eye(4)) for n in (1, 3)]
        >>> rg.Sight(steps).join("attention").queries
        4
        """
        calls = self.calls(name)
        if isinstance(calls[0], MixerSite):
            return join_mixers(calls)
        return join_calls(calls)

    def join_all(self) -> list[Site]:
        """One site per attention, its calls joined; calls that do not continue each other stay.

        >>> steps = [rg.make_site(torch.ones(n, 4), torch.eye(4)) for n in (1, 3)]
        >>> rg.Sight(steps).join_all()
        [attention: cross, 1 head, 4 queries, 4 keys]
        """
        return self._join_each(self.names)

    def _join_each(self, names: list[str]) -> list[Any]:
        sites: list[Any] = []
        for name in names:
            try:
                sites.append(self.join(name))
            except LookError:
                sites += self.calls(name)
        return sites

    def with_tokens(self, tokens: list | dict) -> "Sight":
        """A copy with token labels: a list, one list per sequence, or source and target.

        >>> sight = rg.Sight([rg.make_site(*torch.zeros(2, 3, 2))])
        >>> sight.with_tokens(["a", "b", "c"]).sites[0].key_tokens
        [['a', 'b', 'c']]
        """
        labelled = Sight([*self.sites], dict(self.skipped), [*self.unmatched], [*self.mixers])
        labelled.activations, labelled.aliases = self.activations, self.aliases
        labelled.label(*parse_tokens(tokens))
        return labelled

    def label(self, source: Tokens | None, target: Tokens | None) -> None:
        """Label every site in place; tokens that fit no site are an error."""
        several = len(self.mixer_names) < len(self.mixers)
        self.mixers[:] = label_mixers(self.mixers, target or source, allow_longer=several)
        partial = any(site.tokens for site in self.mixers) or bool(self.unmatched or self.skipped)
        self.sites[:] = label_sites(self.sites, source, target, partial=partial)

    def save(self, path: str | Path) -> Path:
        """Write the sight with its activations to one file; `rg.load_sight` reads it."""
        from regard.inspection.record.sight_file import save_sight

        return save_sight(self, path)

    def heads(
        self,
        *,
        separators: Collection[str] = (),
        probe: HeadTable | None = None,
        thresholds: Thresholds | None = None,
    ) -> HeadTable:
        """Classify every head; calls of one attention are joined first.

        `separators` are tokens such as "[SEP]" or "."; `probe` is a result of `score_heads`,
        which adds induction and duplicate-token heads; `thresholds` are the limits of the types.

        >>> rg.Sight([rg.make_site(*torch.zeros(2, 9, 2))]).heads().types
        {'diffuse': 1}
        """
        table = classify_heads(
            self.join_all(), separators=separators, probe=probe, thresholds=thresholds
        )
        return replace(table, note=self.notes)

    def mixer_heads(self) -> MixerTable:
        """Means of the statistics of each head of the linear mixers; calls are joined first.

        >>> rg.Sight().mixer_heads().rows
        []
        """
        return measure_mixers(self.join_mixers())

    def join_mixers(self) -> list[MixerSite]:
        """One site per linear mixer; calls that do not continue each other stay as they are.

        >>> rg.Sight().join_mixers()
        []
        """
        return self._join_each(self.mixer_names)

    def __getitem__(self, name: str | tuple[str, int]) -> Any:  # a Site or a MixerSite
        if isinstance(name, int):
            raise LookError(
                f"name: needs the name of a site, got {name}; try sight.sites[{name}], or one of "
                f"{', '.join(self.names[:8])}"
            )
        return pick_call(name, self.calls, "sight[{0!r}, 0] or sight.join({0!r})")

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        sites = [*self.sites, *self.mixers]
        lines = [f"Sight of {self._count}", *(f"  {site!r}" for site in sites[:40])]
        lines[0] += f"; {self.coverage}" if self.coverage else ""
        if len(sites) > 40:
            lines.append(f"  … and {len(sites) - 40} more")
        lines += [f"  {counted(len(self.activations), 'activation')}"] if self.activations else []
        lines += [f"  skipped: {line}" for line in format_skipped(self.skipped)]
        return "\n".join(lines)

    @property
    def _count(self) -> str:
        mixers = f" and {counted(len(self.mixers), 'linear mixer')}" if self.mixers else ""
        return f"{counted(len(self), 'attention')}{mixers}"

    def _repr_html_(self) -> str:
        columns = ("name", "call", "kind", "heads", "queries", "keys", "batch")
        rows = ([getattr(x, column) for column in columns] for x in (*self.sites, *self.mixers))
        skipped = (f"<p>skipped: {escape(line)}</p>" for line in format_skipped(self.skipped))
        count = "; ".join(filter(None, (self._count, self.coverage)))
        return "".join((f"<p>{escape(count)}</p>", html_table(columns, rows), *skipped))

    def _hint(self, name: str) -> str:
        skipped = self.skipped | {self.aliases.get(x, x): why for x, why in self.skipped.items()}
        if isinstance(name, str) and name in skipped:
            return f", which was skipped: {skipped[name]}"
        names = (*self.names, *self.mixer_names)
        close = nearest_name(name, {x: self.aliases.get(x, "") for x in names})
        return f"; try {close!r}" if close else ", and none was recorded"


def layer_of(name: str) -> str:
    """The layer that a module belongs to: its name up to the numbers of blocks.

    >>> layer_of("model.layers.3.self_attn"), layer_of("layers.0.blocks.1.attn"), layer_of("pool")
    ('model.layers.3', 'layers.0.blocks.1', 'pool')
    """
    layer = re.match(r".*?(?:^|\.)\d+(?:\.[^.]+\.\d+(?=\.))*", name)
    return layer[0] if layer else name


def nearest_name(name: object, aliases: Mapping[str, str]) -> str | None:
    """The nearest among names and their aliases; None if there are none.

    >>> nearest_name("decoder.1.slef", {"model.layers.1.self_attn": "decoder.1.self"})
    'decoder.1.self'
    """
    known = [x for x in (*aliases, *aliases.values()) if x]
    return next(iter(get_close_matches(str(name), known, 1, 0)), None)


def missing_note(sites: object) -> str:
    """`Sight.missing` of a sight; empty for sites without one."""
    return sites.missing if isinstance(sites, Sight) else ""


def format_skipped(skipped: Mapping[str, str], names: int = 3) -> list[str]:
    """One line per reason: the first names, how many more there are, and the reason.

    >>> format_skipped({"a.0": "over max_bytes", "a.1": "over max_bytes"})
    ['a.0, a.1: over max_bytes']
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        reasons.setdefault(reason, []).append(name)
    lines = []
    for reason, same in reasons.items():
        more = f" and {len(same) - names} more" if len(same) > names else ""
        lines.append(f"{', '.join(same[:names])}{more}: {reason}")
    return lines
