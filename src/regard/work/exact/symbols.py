"""Symbols among the given numbers: declared, worked with exactly, and at the end put in."""

from collections.abc import Collection, Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.numbers import parse_number, shorten_repr
from regard.work.exact.parse import CONSTANTS, FUNCTIONS, SYMBOL

MAX_SYMBOLS = 12  # symbols of one problem


def parse_symbols(symbols: Any, values: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The names of symbols, checked; those that have values are declared by that.

    >>> parse_symbols(["a", "x_1"], {"b": 2})
    ('a', 'x_1', 'b')
    """
    told: Any = [symbols] if isinstance(symbols, str) else symbols or []
    if not isinstance(told, list | tuple):
        raise WorkError(f'symbols: needs a list such as ["a", "x_1"], got {shorten_repr(told)}')
    for name in (*told, *(values or {})):
        if not isinstance(name, str) or not SYMBOL.fullmatch(name) or name in _TAKEN:
            raise WorkError(f"symbols: needs names such as a, x_1 or β, got {name!r}")
    names: list[str] = list(dict.fromkeys([*told, *(values or {})]))
    if len(names) > MAX_SYMBOLS:
        raise WorkError(f"symbols: needs at most {MAX_SYMBOLS}, got {len(names)}")
    return tuple(names)


_TAKEN = {*FUNCTIONS, *(set(CONSTANTS) - {"e", "E"})}


def parse_symbolic(values: Any, symbols: Collection[str]) -> Any:
    """What was given, with every text that may hold a symbol read.

    >>> parse_symbolic({"X": [["2*a", 1]], "mask": "causal"}, ["a"])
    {'X': [[2*a, 1]], 'mask': 'causal'}
    """
    if isinstance(values, Mapping):
        return {name: parse_symbolic(one, symbols) for name, one in values.items()}
    if isinstance(values, list | tuple):
        return [parse_symbolic(one, symbols) for one in values]
    if not isinstance(values, str):
        return values
    try:
        found = parse_number(values, symbols)
    except WorkError:
        return values  # a word that the family knows, or one that it refuses in its own words
    return found if found.free_symbols else values
