"""The words at the positions of a site, given by the caller or named by a tokenizer."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site, Tokens

NO_MATCHING_SITE = "a site that reads them"


def label_site(
    site: Site, source: Tokens | None, target: Tokens | None, *, growing: bool = False
) -> Site:
    """The site with its words, where their count fits; a decoder asks with the target's.

    Shorter sequences are filled up with empty words, as padding stands behind them. If the text
    `grows` from call to call, there may be more words than this call has seen.
    """
    asks, answers = _sides_of(site, source, target)
    first, last = _span(site)
    return replace(
        site,
        query_tokens=_part(asks, site.batch, first, last, growing),
        key_tokens=_part(answers, site.batch, 0, site.keys, growing),
    )


def label_sites(
    sites: Sequence[Site],
    source: Tokens | None,
    target: Tokens | None,
    *,
    partial: bool = False,
) -> list[Site]:
    """Every site with its words; words that fit nowhere are an error.

    In a `partial` sight no site may have read one of the two sides.
    """
    calls = Counter(site.path for site in sites)
    found = [label_site(site, source, target, growing=calls[site.path] > 1) for site in sites]
    for name, words in (("source", source), ("target", target)):
        if words is not None and not any(_uses(site, source, target, words) for site in found):
            side, (need, got) = name if target else "tokens", _misfit(words, source, target, found)
            if partial and need == NO_MATCHING_SITE:
                continue
            raise ShapeError(
                f"{side}: needs {need}, got {got}; try the tokens that the model was given"
            )
    return found


def _uses(site: Site, source: Tokens | None, target: Tokens | None, words: Tokens) -> bool:
    sides = zip(_sides_of(site, source, target), (site.query_tokens, site.key_tokens), strict=True)
    return any(side is words and labels is not None for side, labels in sides)


def _misfit(
    words: Tokens, source: Tokens | None, target: Tokens | None, sites: Sequence[Site]
) -> tuple[str, str]:
    """What words would fit, and what came."""
    needs: dict[int, Site] = {}  # counts, each with the first site that has it
    for site in sites:
        asks, answers = _sides_of(site, source, target)
        for side, count in ((asks, _span(site)[1]), (answers, site.keys)):
            if side is words:
                needs.setdefault(count, site)
    counts = " or ".join(f"{count} ({site.name})" for count, site in [*needs.items()][:3])
    got = str(max(map(len, words)))
    if len(words) > 1:
        batches = dict.fromkeys(site.batch for site in needs.values())
        counts += f" for each of {' or '.join(map(str, batches))} sequences"
        got += f" for each of {len(words)}"
    return f"{counts} words" if needs else NO_MATCHING_SITE, got


def _sides_of(
    site: Site, source: Tokens | None, target: Tokens | None
) -> tuple[Tokens | None, Tokens | None]:
    """The words of queries and of keys."""
    writes = target is not None and (site.kind == "cross" or "decoder" in site.path)
    return target if writes else source, source if site.kind == "cross" or not writes else target


def _span(site: Site) -> tuple[int, int]:
    """The positions of the first query and behind the last."""
    last = site.terms.offset + site.queries if site.kind == "self" else site.queries
    return last - site.queries, last


def parse_tokens(tokens: Any) -> tuple[Tokens | None, Tokens | None]:
    """Source and target, as a caller may write them.

    >>> parse_tokens({"source": ["a", "b"], "target": ["c"]})
    ([['a', 'b']], [['c']])
    """
    if isinstance(tokens, Mapping):
        if odd := sorted(set(tokens) - {"source", "target"}):
            raise ShapeError(f"tokens: needs source and target, got {odd[0]!r}")
        return _batched(tokens.get("source")), _batched(tokens.get("target"))
    return _batched(tokens), None


def _batched(tokens: Any) -> Tokens | None:
    if tokens is None:
        return None
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise ShapeError(f"tokens: needs a list of words, got {tokens!r}; try text.split()")
    if all(isinstance(token, str) for token in tokens):
        return [list(tokens)]
    for row in tokens:
        is_list = isinstance(row, Sequence) and not isinstance(row, str)
        if not is_list or not all(isinstance(token, str) for token in row):
            raise ShapeError(f"tokens: needs words or lists of words, got {row!r} among them")
    return [list(row) for row in tokens]


def _part(tokens: Tokens | None, batch: int, first: int, last: int, grows: bool) -> Tokens | None:
    """Words first to last of each sequence; None unless there are so many."""
    if tokens is None or len(tokens) not in (1, batch):
        return None
    longest = max(len(row) for row in tokens)
    if longest < last or (longest > last and not grows):
        return None
    rows = tokens if len(tokens) == batch else tokens * batch
    return [(row + [""] * (longest - len(row)))[first:last] for row in rows]


Ids = tuple[Tensor | None, Tensor | None]  # of source and target
TokenHistory = tuple[
    list[Ids], int
]  # those of every run in a thread, and how many there were so far


class TokenLabeler:
    """Names the positions of every site once the run is over.

    With a tokenizer it reads the ids as the model is given them: a step of generation goes on with
    the text so far, if its attention saw that text.
    """

    def __init__(self, model: nn.Module, sight: Sight, tokens: Any):
        self.model, self.sight = model, sight
        self.tokenizer = tokens if hasattr(tokens, "convert_ids_to_tokens") else None
        self.tokens = (None, None) if self.tokenizer is not None else parse_tokens(tokens)
        self._all: list[Ids] = []
        self._here = threading.local()  # .runs, of the thread that asks

    def __enter__(self) -> "TokenLabeler":
        self._hook = None
        if self.tokenizer is not None:
            self._hook = self.model.register_forward_pre_hook(self._read, with_kwargs=True)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()

    def token_history(self) -> TokenHistory:
        """What was read so far in this thread; a thread that only helps has all of them."""
        runs = getattr(self._here, "runs", self._all)
        return runs, len(runs)

    def label(self, site: Site, history: TokenHistory) -> Site:
        """The site with the words that the tokenizer has for what was read."""
        if self.tokenizer is None:
            return site
        source, target = self._texts_of(site, history)
        return label_site(site, source, target, growing=True) if source or target else site

    def label_all(self) -> None:
        """Put the words that were given at every site; words that fit nowhere are an error."""
        if any(self.tokens):
            partial = bool(self.sight.unmatched or self.sight.skipped)
            named = label_sites(self.sight.sites, *self.tokens, partial=partial)
            self.sight.sites[:] = named

    def _read(self, model: nn.Module, args: tuple, kwargs: dict[str, Any] | None = None) -> None:
        kwargs = kwargs or {}  # none where another thread's forward came in while it is registered
        ids = [x for x in args if _is_ids(x)]
        source = kwargs.get("input_ids", ids[0] if ids else None)
        target = kwargs.get("decoder_input_ids", ids[1] if len(ids) > 1 else None)
        if not hasattr(self._here, "runs"):
            self._here.runs = []
        self._here.runs.append((source, target))
        self._all.append((source, target))

    def _texts_of(self, site: Site, texts: TokenHistory) -> tuple[Tokens | None, Tokens | None]:
        runs, count = texts
        source = [s for s, _ in runs[:count] if s is not None]
        target = [t for _, t in runs[:count] if t is not None]
        keys = site.keys if site.kind == "self" else None
        if target:
            return self._words(source, None), self._words(target, keys)
        return self._words(source, keys), None

    def _words(self, ids: list[Tensor], keys: int | None) -> Tokens | None:
        """The last ids, and as many before them as the attention saw."""
        if not ids or self.tokenizer is None:
            return None
        text = ids.pop()
        while ids and keys is not None and text.shape[1] < keys and len(ids[-1]) == len(text):
            text = torch.cat([ids.pop(), text], 1)
        return [list(self.tokenizer.convert_ids_to_tokens(row.tolist())) for row in text]


def _is_ids(x: Any) -> bool:
    return (
        isinstance(x, Tensor)
        and x.ndim == 2
        and not x.is_floating_point()
        and x.dtype != torch.bool
    )
