"""Indices, counts and slices given by callers, checked."""

import operator
from collections.abc import Iterable
from typing import Any

from regard.errors import ShapeError


def as_int(name: str, value: Any) -> int:
    """An integer of any type (also numpy's, or a tensor), but no bool, float or string.

    >>> as_int("head", torch.tensor(3))
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        text = value.strip() if isinstance(value, str) else ""
        hint = f"; try {text}" if text.lstrip("-").isdigit() else ""
        raise ShapeError(f"{name}: needs a whole number, got {value!r}{hint}") from None


def as_ints(name: str, value: Any) -> list[int]:
    """One integer or several, as a list.

    >>> as_ints("heads", 3), as_ints("heads", [0, 2])
    ([3], [0, 2])
    """
    if isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1):
        return [as_int(name, x) for x in value]
    return [as_int(name, value)]


def resolve_index(name: str, value: Any, count: int) -> int:
    """An index below `count`; negative ones count from the end.

    >>> resolve_index("head", -1, 4)
    3
    """
    at = as_int(name, value)
    if not -count <= at < count:
        raise ShapeError(f"{name}: needs less than {count}, got {at}; try 0 to {count - 1}")
    return at % count


def as_int_pair(name: str, value: Any) -> tuple[int, int]:
    """A pair of integers.

    >>> as_int_pair("pool", (2, 4))
    (2, 4)
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ShapeError(f"{name}: needs two whole numbers, got {value!r}; try ({value!r}, 1)")
    return as_int(name, value[0]), as_int(name, value[1])


def resolve_slice(value: Any, count: int, name: str) -> range:
    """The range of a slice, at least one long; an integer is a range of one.

    >>> resolve_slice(slice(1, None), 4, "rows"), resolve_slice(-1, 4, "rows")
    (range(1, 4), range(3, 4))
    """
    if isinstance(value, range):
        value = slice(value.start, value.stop, value.step)
    if not isinstance(value, slice):
        try:
            at = resolve_index(name, value, count)
        except ShapeError:
            if isinstance(value, int):
                raise
            raise ShapeError(
                f"{name}: needs a slice or a whole number, got {value!r}; try slice(0, {count})"
            ) from None
        return range(at, at + 1)
    for end in (value.start, value.stop):
        if end is not None:
            as_int(name, end)
    if value.step not in (None, 1):
        raise ShapeError(f"{name}: needs step 1, got {value.step}; try pool")
    result = range(count)[value]
    if not result:
        raise ShapeError(f"{name}: needs at least one of {count}, got {value}")
    return result
