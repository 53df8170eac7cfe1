"""All attentions of one or several runs."""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import LookError
from regard.inspection.sites.site import Site
from regard.ops.indices import as_int

if TYPE_CHECKING:
    from regard.inspection.heads.head_table import HeadTable
    from regard.inspection.heads.head_types import Thresholds


class Sight:
    """Every attention that ran while looking, and by name what could not be seen, with the reason.

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
    ):
        self.sites: list[Site] = [] if sites is None else sites
        self.skipped: dict[str, str] = {} if skipped is None else skipped
        self.unmatched: list[str] = (
            [] if unmatched is None else unmatched
        )  # ran, but at= named others

    @property
    def names(self) -> list[str]:
        """The name of every site once, in the order they first ran."""
        return list(dict.fromkeys(site.name for site in self.sites))

    def calls(self, name: str) -> list[Site]:
        """All calls of one attention, in order: one a step when generating.

        >>> layer, x = rg.nn.MultiHeadAttention(2, 1), torch.ones(1, 4, 2)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(x), layer(x)
        >>> len(sight.calls("MultiHeadAttention"))
        2
        """
        known = self.sites if isinstance(name, str) else []
        found = [site for site in known if name in (site.name, site.path)]
        if not found:
            raise LookError(f"name: needs one of the sites, got {name!r}{self._instead(name)}")
        return found

    def join(self, name: str) -> Site:
        """The calls of one attention as one: the whole map of a text that was generated.

        >>> layer, x = rg.nn.MultiHeadAttention(2, 1), torch.randn(1, 4, 2)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(x[:, :1], x), layer(x[:, 1:], x)
        >>> sight.join("MultiHeadAttention").queries
        4
        """
        from regard.inspection.sites.splice import join_calls

        return join_calls(self.calls(name))

    def with_tokens(self, tokens: list | dict) -> "Sight":
        """The same with words at the positions: a list, a list a sequence, or source and target.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 3, 2))
        >>> sight.with_tokens(["a", "b", "c"]).sites[0].key_tokens
        [['a', 'b', 'c']]
        """
        from regard.inspection.sites.tokens import label_sites, parse_tokens

        partial = bool(self.unmatched or self.skipped)
        named = label_sites(self.sites, *parse_tokens(tokens), partial=partial)
        return Sight(named, dict(self.skipped), list(self.unmatched))

    def save(self, path: str | Path) -> Path:
        """Write it to one safetensors file, to be opened later or elsewhere by `load_sight`."""
        from regard.inspection.record.sight_file import save_sight

        return save_sight(self, path)

    def heads(
        self,
        *,
        separators: Collection[str] = (),
        probe: "HeadTable | None" = None,
        thresholds: "Thresholds | None" = None,
    ) -> "HeadTable":
        """Each head typed, with the numbers behind the word.

        `separators` are tokens such as "[SEP]" or "."; `probed` is what `rg.probe` found.

        >>> layer = rg.nn.MultiHeadAttention(2, 1)
        >>> with rg.look(layer) as sight:
        ...     _ = layer(torch.ones(1, 9, 2))
        >>> sight.heads().types
        {'diffuse': 1}
        """
        from regard.inspection.heads.head_table import classify_heads

        return classify_heads(self, separators=separators, probe=probe, thresholds=thresholds)

    def __getitem__(self, name: str | tuple[str, int]) -> Site:
        if isinstance(name, int):
            raise LookError(
                f"name: needs the name of a site, got {name}; try sight.sites[{name}], or one of "
                f"{', '.join(self.names[:8])}"
            )
        name, call = name if isinstance(name, tuple) and len(name) == 2 else (name, None)
        call = None if call is None else as_int("call", call)
        found = self.calls(name)
        if call is None and len(found) > 1:
            raise LookError(
                f"name: needs a call too, as {name!r} ran {len(found)} times, got none; "
                f"try sight[{name!r}, 0] or sight.joined({name!r})"
            )
        try:
            return found[0 if call is None else call]
        except IndexError:
            raise LookError(
                f"call: needs less than the {len(found)} calls of {name!r}, got {call}"
            ) from None

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        lines = [f"Sight of {len(self)} attentions", *(f"  {site!r}" for site in self.sites[:40])]
        if len(self) > 40:
            lines.append(f"  … and {len(self) - 40} more")
        lines += [f"  not seen: {line}" for line in format_skipped(self.skipped)]
        return "\n".join(lines)

    def _instead(self, name: str) -> str:
        if isinstance(name, str) and name in self.skipped:
            return f", which was not seen: {self.skipped[name]}"
        close = get_close_matches(str(name), self.names, 1, 0)
        return f"; try {close[0]!r}" if close else ", and none was seen"


def format_skipped(skipped: Mapping[str, str], names: int = 3) -> list[str]:
    """One line per reason: the first names, how many there are, and why.

    >>> format_skipped({"a.0": "as it was full", "a.1": "as it was full"})
    ['a.0, a.1, as it was full']
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        reasons.setdefault(reason, []).append(name)
    return [
        f"{', '.join(same[:names])}{f' and {len(same) - names} more' * (len(same) > names)}, {why}"
        for why, same in reasons.items()
    ]
