"""The position of the first token of a forward pass: that after the cache, in a generation."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from torch import Tensor, nn

from regard.inspection.adapters.block_stacks import find_stacks

CACHES = ("past_key_values", "past_key_value", "layer_past")


@contextmanager
def tracked_position(model: nn.Module) -> Iterator[Callable[[], int]]:
    """The position of the first token of the pass that runs in the calling thread.

    Read from the cache or the offset that the model, or a module around its blocks, is called with.
    A pass without one begins at 0.
    """
    here, modules = threading.local(), dict(model.named_modules())

    def enter(module: nn.Module, args: tuple, kwargs: dict[str, Any] | None = None) -> None:
        first = _first_position(module, args, kwargs or {})
        if first is not None:
            here.first = first
        elif module is model:
            here.first = 0

    around = {"": model}
    for stack in find_stacks(modules):
        parts = stack.path.split(".")
        around |= {path: modules[path] for n in range(len(parts)) if (path := ".".join(parts[:n]))}
    around |= {path: module for path, module in modules.items() if "offset" in _names(type(module))}
    with ExitStack() as hooks:
        for module in around.values():
            handle = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
            hooks.callback(handle.remove)
        yield lambda: getattr(here, "first", 0)


@cache
def _names(kind: type[nn.Module]) -> tuple[str, ...]:
    """The arguments of a forward."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def _first_position(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> int | None:
    names = _names(type(module))
    given = dict(zip(names, args, strict=False)) | kwargs
    if "offset" in given or "offset" in names:
        return int(given.get("offset", 0))
    if isinstance(places := given.get("cache_position"), Tensor):
        return int(places[0])
    for name in CACHES:
        if name in given or name in names:
            return _length(given.get(name))
    return None


def _length(past: Any) -> int:
    """The number of positions in a cache of transformers."""
    if hasattr(past, "get_seq_length"):
        return int(past.get_seq_length())
    return past[0][0].shape[-2] if past else 0  # one pair of keys and values per layer
