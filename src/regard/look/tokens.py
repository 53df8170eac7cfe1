"""The words at the positions of a site, given by the caller or named by a tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.look.sight import Sight
from regard.look.site import Site, Tokens


def with_tokens(site: Site, source: Tokens | None, target: Tokens | None) -> Site:
    """The site with its words, where their count fits; a decoder asks with the target's.

    Shorter sequences are filled up with empty words, as padding stands behind them.
    """
    writes = target is not None and (site.kind == "cross" or "decoder" in site.path)
    asks = target if writes else source
    answers = source if site.kind == "cross" or not writes else target
    last = site.terms.offset + site.queries if site.kind == "self" else site.queries
    first = last - site.queries
    return replace(
        site,
        query_tokens=_part(asks, site.batch, first, last),
        key_tokens=_part(answers, site.batch, 0, site.keys),
    )


def sides(tokens: Any) -> tuple[Tokens | None, Tokens | None]:
    """Source and target, as a caller may write them.

    >>> sides({"source": ["a", "b"], "target": ["c"]})
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
    return [list(row) for row in tokens]


def _part(tokens: Tokens | None, batch: int, first: int, last: int) -> Tokens | None:
    """Words first to last of each sequence; None unless there are so many."""
    if tokens is None or len(tokens) not in (1, batch):
        return None
    longest = max(len(row) for row in tokens)
    if longest < last:
        return None
    rows = tokens if len(tokens) == batch else tokens * batch
    return [(row + [""] * (longest - len(row)))[first:last] for row in rows]


class TextReader:
    """Names the positions of every site once the run is over.

    With a tokenizer it reads the ids as the model is given them: a step of generation goes on with
    the text so far, if its attention saw that text.
    """

    def __init__(self, model: nn.Module, sight: Sight, tokens: Any):
        self.model, self.sight = model, sight
        self.tokenizer = tokens if hasattr(tokens, "convert_ids_to_tokens") else None
        self.given = (None, None) if self.tokenizer is not None else sides(tokens)
        self.texts: list[tuple[int, Tensor | None, Tensor | None]] = []  # from which site on

    def __enter__(self) -> None:
        self._hook = None
        if self.tokenizer is not None:
            self._hook = self.model.register_forward_pre_hook(self._read, with_kwargs=True)

    def __exit__(self, *_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
        self.sight.sites[:] = [self._named(i, site) for i, site in enumerate(self.sight.sites)]

    def _read(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        ids = [x for x in args if _is_ids(x)]
        source = kwargs.get("input_ids", ids[0] if ids else None)
        target = kwargs.get("decoder_input_ids", ids[1] if len(ids) > 1 else None)
        self.texts.append((len(self.sight.sites), source, target))

    def _named(self, index: int, site: Site) -> Site:
        if self.tokenizer is None:
            source, target = self.given
        else:
            source, target = self._texts_at(index, site)
        return with_tokens(site, source, target) if source or target else site

    def _texts_at(self, index: int, site: Site) -> tuple[Tokens | None, Tokens | None]:
        runs = [run for run in self.texts if run[0] <= index]
        source = [s for _, s, _ in runs if s is not None]
        target = [t for _, _, t in runs if t is not None]
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
