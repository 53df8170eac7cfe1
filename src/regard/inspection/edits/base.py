"""The Edit type, and the arguments that all edits share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard.errors import ShapeError
from regard.inspection.adapters.module_tracker import Caller, check_glob
from regard.ops.indices import as_ints
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed

Indices = int | Sequence[int]
EditFunction = Callable[[AttentionCall, Proceed, Caller], AttentionResult]


@dataclass(frozen=True)
class Edit:
    """One change to every attention whose name or path matches the glob `site`.

    An edit is an interceptor; registered alone, it changes every call.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> with rg.ops.intercept.intercepting(rg.edit.drop_key("*", 0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[3.]])
    """

    site: str
    description: str
    apply: EditFunction
    last_key: int = -1  # largest key index; some edited call must have that many keys

    def __post_init__(self) -> None:
        check_glob("site", self.site)

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        return self.apply(call, proceed, Caller())

    def __repr__(self) -> str:
        return self.description


def as_indices(name: str, indices: Indices) -> tuple[int, ...]:
    """One or several indices as a tuple, each 0 or more."""
    numbers = tuple(as_ints(name, indices))
    if not numbers or min(numbers) < 0:
        raise ShapeError(f"{name}: needs one or more, counted from 0, got {indices}")
    return numbers


def as_optional_indices(name: str, indices: Indices | None) -> tuple[int, ...] | None:
    """As `as_indices`; None stands for all and stays None."""
    return None if indices is None else as_indices(name, indices)


def check_finite(name: str, value: float, minimum: float = -torch.inf) -> None:
    """Raise unless value is a finite number and at least `minimum`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and abs(value) < torch.inf and value >= minimum):
        rule = "a finite number" + ("" if minimum == -torch.inf else f" from {minimum:g} up")
        raise ShapeError(f"{name}: needs {rule}, got {value!r}")


def format_call(name: str, *args: object, **kwargs: object) -> str:
    """The source text of a call, without keyword arguments that are None."""
    given = [f"{key}={value!r}" for key, value in kwargs.items() if value is not None]
    return f"{name}({', '.join([*map(repr, args), *given])})"
