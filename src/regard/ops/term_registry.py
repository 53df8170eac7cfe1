"""The registry of masks and biases: each is stored in files as its class name and fields."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, TypeVar

from torch import Tensor

from regard.errors import ConfigError

T = TypeVar("T", bound=type)
TermKind = Literal["mask", "bias"]

TERMS: dict[type, TermKind] = {}


def register_term(kind: TermKind) -> Callable[[T], T]:
    """Class decorator that adds a dataclass of masks or biases to the registry."""

    def add(cls: T) -> T:
        TERMS[cls] = kind
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
    kind = TERMS.get(type(value))
    if kind is None:
        raise ConfigError(
            f"term: needs a registered mask or bias, got {type(value).__name__}; "
            "try it as a tensor, mask.dense(queries, keys)"
        )
    values = {f.name: term_to_dict(getattr(value, f.name), pack) for f in fields(value)}
    return {kind: type(value).__name__, "of": values}


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
    names = {cls.__name__: cls for cls, known in TERMS.items() if known == kind}
    if description[kind] not in names:
        raise ConfigError(f"{kind}: needs one of {', '.join(names)}, got {description[kind]!r}")
    values = {name: term_from_dict(value, unpack) for name, value in description["of"].items()}
    return names[description[kind]](**values)
