"""Symbols among the given numbers: declaration and parsing."""

from collections.abc import Collection, Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.numbers import parse_number, shorten_repr
from regard.work.exact.parse import CONSTANTS, FUNCTIONS, SYMBOL

MAX_SYMBOLS = 12  # per problem


def parse_symbols(symbols: Any, values: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Validate symbol names; those with values need no declaration.

    >>> parse_symbols(["a", "x_1"], {"b": 2})
    ('a', 'x_1', 'b')
    """
    declared: Any = [symbols] if isinstance(symbols, str) else symbols or []
    if not isinstance(declared, list | tuple):
        raise WorkError(f'symbols: needs a list such as ["a", "x_1"], got {shorten_repr(declared)}')
    for name in (*declared, *(values or {})):
        if not isinstance(name, str) or not SYMBOL.fullmatch(name) or name in _RESERVED:
            raise WorkError(f"symbols: needs names such as a, x_1 or β, got {name!r}")
    names: list[str] = list(dict.fromkeys([*declared, *(values or {})]))
    if len(names) > MAX_SYMBOLS:
        raise WorkError(f"symbols: needs at most {MAX_SYMBOLS}, got {len(names)}")
    return tuple(names)


_RESERVED = {*FUNCTIONS, *(set(CONSTANTS) - {"e", "E"})}


def parse_symbolic(values: Any, symbols: Collection[str]) -> Any:
    """Parse every string that contains a declared symbol, in nested lists and tables.

    >>> parse_symbolic({"X": [["2*a", 1]], "mask": "causal"}, ["a"])
    {'X': [[2*a, 1]], 'mask': 'causal'}
    """
    if isinstance(values, Mapping):
        return {name: parse_symbolic(value, symbols) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [parse_symbolic(value, symbols) for value in values]
    if not isinstance(values, str):
        return values
    try:
        number = parse_number(values, symbols)
    except WorkError:
        return values  # an option such as mask = "causal"; the family validates it
    return number if number.free_symbols else values
