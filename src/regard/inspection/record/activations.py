"""The activations of a sight, by name and call."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.errors import LookError, counted
from regard.ops.indices import as_int

T = TypeVar("T")
ADDITIVE_TOLERANCE = 16  # rounding errors of the sum of a block's parts


class Activations(Mapping[str, Tensor]):
    """Recorded activations: `sight.activations["decoder.3.mlp.out"]`.

    An activation that was computed several times, as in a generation, needs the call too:
    `sight.activations["decoder.3.mlp.out", 0]`. The names are those of `activation_names`.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> with rg.look(model, activations="*.mlp.out") as sight:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> list(sight.activations), sight.activations["decoder.1.mlp.out"].shape
    (['decoder.0.mlp.out', 'decoder.1.mlp.out'], torch.Size([1, 3, 64]))
    """

    def __init__(self) -> None:
        self._calls: defaultdict[str, list[Tensor]] = defaultdict(list)
        self.aliases: dict[str, str] = {}  # names by path, "model.layers.3.mlp" for its output

    def append(self, name: str, x: Tensor) -> None:
        """Add one call of an activation."""
        self._calls[name].append(x)

    def remove(self, names: Collection[str]) -> None:
        """Remove all calls of some activations."""
        for name in self._calls.keys() & set(names):
            del self._calls[name]

    def calls(self, name: str) -> list[Tensor]:
        """All calls of one activation, in order.

        >>> Activations().calls("mlp")
        Traceback (most recent call last):
            ...
        regard.errors.LookError: name: needs a recorded activation, got 'mlp'; try activations='*'
        """
        name = self.aliases.get(name, name)
        if name not in self._calls:
            known = [*self._calls, *(x for x, n in self.aliases.items() if n in self._calls)]
            close = get_close_matches(str(name), known, 1, 0) or ["activations='*'"]
            raise LookError(f"name: needs a recorded activation, got {name!r}; try {close[0]}")
        return self._calls[name]

    def __getitem__(self, key: str | tuple[str, int]) -> Tensor:
        return pick_call(key, self.calls, "activations[{0!r}, 0]")

    def get(self, name: str, default: Any = None) -> Any:  # type: ignore[override]
        """An activation, or the default if it was not recorded."""
        return self[name] if name in self else default  # noqa: SIM401, Mapping.get wants KeyError

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.aliases.get(name, name) in self._calls

    def __repr__(self) -> str:
        lines = (f"  {name}: {tuple(x[0].shape)}" for name, x in self._calls.items())
        return "\n".join((counted(len(self), "activation"), *lines))

    def residual_mid(self, block: str) -> Tensor:
        """The residual stream between attention and feed-forward of a block, "decoder.3".

        residual_mid = residual_in + self.out (+ cross.out),   where residual_out is the sum of all

        >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9)).eval()
        >>> with rg.look(model, activations="decoder.0.*") as sight:
        ...     _ = model(torch.tensor([[1, 2, 3]]))
        >>> sight.activations.residual_mid("decoder.0").shape
        torch.Size([1, 3, 256])
        """
        rare = [name for name in ("cross", "per_layer") if f"{block}.{name}.out" in self]
        added = {name: self[f"{block}.{name}.out"] for name in ("self", "mlp", *rare)}
        middle = self[f"{block}.residual_in"] + added.pop("self") + added.pop("cross", 0)
        end = self[f"{block}.residual_out"]
        error = (sum(added.values(), middle) - end).abs().max() / end.abs().max()
        if not error < ADDITIVE_TOLERANCE * torch.finfo(end.dtype).eps:
            raise LookError(
                f"block: needs one whose parts add up to its output, got {block} with a relative "
                f"error of {float(error):.2g} (a norm after the sum, or scaled parts)"
            )
        return middle


def pick_call(key: Any, calls_of: Callable[[Any], list[T]], hint: str) -> T:
    """The only call of a name, or that of a name and a number."""
    name, call = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
    at, calls = (0 if call is None else as_int("call", call)), calls_of(name)
    if call is None and len(calls) > 1:
        raise LookError(
            f"name: needs a call too, as {name!r} ran {len(calls)} times, got none; "
            f"try {hint.format(name)}"
        )
    if not -len(calls) <= at < len(calls):
        raise LookError(f"call: needs less than the {len(calls)} calls of {name!r}, got {call}")
    return calls[at]
