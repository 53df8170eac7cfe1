"""One activation of a model: the module and the tensor where it is read and replaced."""

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.inspection.adapters.block_stacks import first_tensor, nth_tensor
from regard.inspection.adapters.module_tracker import ModelHook

Read = Callable[[Tensor], Tensor | None]


class ActivationPoint(NamedTuple):
    """An activation: the first tensor among the inputs or outputs of a module.

    `heads` splits the last axis, (batch, time, heads · value), into (batch, time, head, value).
    """

    name: str
    path: str
    module: nn.Module
    side: Literal["in", "out"]
    heads: int | None = None
    block: nn.Module | None = None  # set where the module may get (batch · time, dim), as OPT's
    streams_first: bool = False  # Gemma 3n: (stream, batch, time, dim), read with streams third
    tensor: int | None = 0  # which of them; None: chosen experts, weights, number of experts
    experts: int = 0  # their number, of a choice

    def hook(self, function: Read, *, first: bool = False) -> ExitStack:
        """Call a function with the activation on every run; what it returns replaces it.

        The hooks are removed when the stack closes. With `first` the function is called before
        those of earlier hooks.
        """
        here = threading.local()  # .batch: (batch, time) of the block that runs
        heads = self.heads

        def change(value: Any) -> Any:
            # an output with a loss has that before the logits
            has_logits = isinstance(value, dict) and "logits" in value
            if self.tensor is None:
                return change_choice(value)
            x = nth_tensor(value["logits"] if has_logits else value, self.tensor)
            if x is None:
                return None
            batch = getattr(here, "batch", ())
            shaped = x.view(*batch, -1) if batch and x.ndim == 2 else x
            shaped = shaped.movedim(0, 2) if self.streams_first else shaped
            if heads is not None:
                shaped = shaped.view(*shaped.shape[:-1], heads, -1)
            y = function(shaped)
            if y is None:
                return None
            y = y.movedim(2, 0) if self.streams_first else y
            return _replace_first(value, x, y.reshape(x.shape))

        def change_choice(value: Any) -> Any:
            experts, weights = nth_tensor(value, 1), nth_tensor(value, 2)
            if experts is None or weights is None or experts.shape != weights.shape:
                return None
            numbers = experts.float(), weights.float()
            both = torch.stack([*numbers, torch.full_like(numbers[0], self.experts)], -1)
            batch = getattr(here, "batch", ()) or (1, len(experts))
            y = function(both.view(*batch, *both.shape[-2:]))
            if y is None:
                return None
            chosen, new, _ = y.reshape(both.shape).unbind(-1)
            value = _replace_first(value, experts, chosen.round().to(experts.dtype))
            return _replace_first(value, weights, new.to(weights.dtype))

        def enter_block(block: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
            x = first_tensor(args or kwargs)
            here.batch = () if x is None or x.ndim != 3 else tuple(x.shape[:2])

        def enter(module: nn.Module, args: tuple, kwargs: dict | None = None) -> Any:
            # a hook that is just being registered is called without kwargs
            if (new := change(args or kwargs)) is None:
                return None
            return (new, kwargs or {}) if args else (args, new)

        hooks = ExitStack()
        if self.block is not None:
            add = self.block.register_forward_pre_hook
            hooks.enter_context(add(ModelHook(enter_block), with_kwargs=True))
        if self.side == "in":
            add = self.module.register_forward_pre_hook
            hooks.enter_context(add(ModelHook(enter), with_kwargs=True, prepend=first))
        else:
            leave = ModelHook(lambda module, args, out: change(out))
            hooks.enter_context(self.module.register_forward_hook(leave, prepend=first))
        return hooks


def hook_activations(
    points: Iterable[ActivationPoint],
    function: Callable[[str, Tensor], Tensor | None],
    *,
    first: bool = False,
) -> ExitStack:
    """`ActivationPoint.hook` for several activations; the function gets the name of each too."""
    hooks = ExitStack()
    for point in points:
        hooks.enter_context(point.hook(partial(function, point.name), first=first))
    return hooks


def _replace_first(value: Any, old: Tensor, new: Tensor) -> Any:
    """The inputs or outputs of a module with one tensor replaced; containers keep their type."""
    if value is old:
        return new
    if isinstance(value, dict):  # a ModelOutput of transformers too
        copy = type(value)(value)
        for key, item in value.items():
            if first_tensor(item) is old:
                copy[key] = _replace_first(item, old, new)
                return copy
    items = list(value)
    at = next(i for i, item in enumerate(items) if first_tensor(item) is old)
    items[at] = _replace_first(items[at], old, new)
    return type(value)(items) if type(value) in (tuple, list) else type(value)(*items)
