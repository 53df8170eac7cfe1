"""The registry of masks and biases: how each is spelled in text and stored in files.

A mask of integers is spelled by its name and fields, "local:3"; masks combine as in Python,
"causal & local:3". Every registered mask or bias is stored as its class name and fields.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from functools import reduce
from operator import and_, or_
from typing import Any, Literal, NamedTuple, TypeVar

from torch import Tensor

from regard.errors import ConfigError, RegardError, suggestion

T = TypeVar("T", bound=type)
TermKind = Literal["mask", "bias"]


class RegisteredTerm(NamedTuple):
    """What is known of a registered class of masks or biases."""

    kind: TermKind
    spelling: str | None  # its name in text; None if it holds tensors


TERMS: dict[type, RegisteredTerm] = {}


def register_term(kind: TermKind, *, spelling: str | None = None) -> Callable[[T], T]:
    """Class decorator that adds a dataclass of masks or biases to the registry."""

    def add(cls: T) -> T:
        TERMS[cls] = RegisteredTerm(kind, spelling)
        return cls

    return add


def term_to_dict(value: Any, pack: Callable[[Tensor], Any]) -> Any:
    """A mask or bias, or one of its fields, as JSON; `pack` stores a tensor, returns its reference.

    >>> term_to_dict(rg.Causal() & rg.ops.masks.Local(3), pack=id)["of"]["b"]
    {'mask': 'Local', 'of': {'radius': 3}}
    """
    if isinstance(value, Tensor):
        return {"tensor": pack(value)}
    if value is None or isinstance(value, bool | int | float):
        return value
    entry = TERMS.get(type(value))
    if entry is None:
        raise ConfigError(
            f"term: needs a registered mask or bias, got {type(value).__name__}; "
            "try it as a tensor, mask.dense(queries, keys)"
        )
    values = {f.name: term_to_dict(getattr(value, f.name), pack) for f in fields(value)}
    return {entry.kind: type(value).__name__, "of": values}


def term_from_dict(description: Any, unpack: Callable[[Any], Tensor]) -> Any:
    """The mask or bias that `term_to_dict` described; `unpack` returns the tensor of a reference.

    >>> term_from_dict({"mask": "Local", "of": {"radius": 3}}, unpack=torch.tensor)
    Local(radius=3)
    """
    if not isinstance(description, dict):
        return description
    if "tensor" in description:
        return unpack(description["tensor"])
    kind = "mask" if "mask" in description else "bias"
    names = {cls.__name__: cls for cls, entry in TERMS.items() if entry.kind == kind}
    if description[kind] not in names:
        raise ConfigError(f"{kind}: needs one of {', '.join(names)}, got {description[kind]!r}")
    values = {name: term_from_dict(value, unpack) for name, value in description["of"].items()}
    return names[description[kind]](**values)


def parse_mask(text: str) -> Any:
    """The mask that a text spells; None for "none".

    `&` (or a comma) intersects masks and `|`, which binds weaker, unites them.

    >>> parse_mask("causal & local:2")
    Both(a=Causal(), b=Local(radius=2))
    """
    if text.strip() == "none":
        return None
    unions = [re.split(r"[&,]", part) for part in text.split("|")]
    return reduce(or_, (reduce(and_, map(_parse_one, parts)) for parts in unions))


def _parse_one(text: str) -> Any:
    name, *numbers = text.strip().split(":")
    spelled = {e.spelling: cls for cls, e in TERMS.items() if e.spelling and e.spelling.isalpha()}
    try:
        return spelled[name](*map(int, numbers))
    except RegardError:  # a number out of range
        raise
    except (KeyError, TypeError, ValueError):
        patterns = (":".join([n, *(f.name.upper() for f in fields(spelled[n]))]) for n in spelled)
        raise ConfigError(
            f"mask: needs none or {', '.join(patterns)}, got {text.strip()!r}"
            f"{suggestion(name, spelled)}"
        ) from None


def spell_mask(mask: Any) -> str:
    """The text that `parse_mask` turns into this mask.

    >>> spell_mask(rg.Causal() & rg.ops.masks.Local(2))
    'causal & local:2'
    """
    if mask is None:
        return "none"
    entry = TERMS.get(type(mask))
    if entry is None or entry.spelling is None:
        raise ConfigError(f"mask: needs one without tensors, got {type(mask).__name__}")
    values = [getattr(mask, f.name) for f in fields(mask)]
    if entry.spelling in ("&", "|"):
        a, b = map(spell_mask, values)
        if entry.spelling == "&" and ("|" in a or "|" in b):
            raise ConfigError(f"mask: needs no union within an intersection, got {mask}")
        return f"{a} {entry.spelling} {b}"
    return ":".join([entry.spelling, *(str(v) for v in values if v is not None)])
