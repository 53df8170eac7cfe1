"""The arguments of a model's first call, and the same made short: for a cheap run of its own."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.inspection.adapters.block_stacks import BlockStack, find_stacks
from regard.inspection.adapters.module_tracker import ModelHook

LENGTHS = (13, 11, 17, 19, 23)  # of short sequences; those that are the size of no parameter
MAX_POSITIONS = 4096  # of a call that cannot be made short
DROPPED = ("labels", "past_key_values", "past_key_value", "cache_params", "encoder_outputs")

SHAPES = re.compile(r"grid|sizes")  # arguments with sizes of pictures, which are no token ids

Call = tuple[tuple, dict[str, Any]]


@contextmanager
def first_calls(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Call]]:
    """The arguments of the first call of a model, or of the parts that were called without it."""
    calls, thread = dict[str, Call](), threading.get_ident()

    def enter(path: str, module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
        if threading.get_ident() == thread and not any(
            not p or f"{path}.".startswith(f"{p}.") for p in calls
        ):
            calls[path] = args, dict(kwargs or {})

    blocks = tuple(f"{stack.path}." for stack in find_stacks(modules))
    with ExitStack() as hooks:
        for path, module in modules.items():
            inside = blocks and f"{path}.".startswith(blocks)
            is_container = isinstance(module, nn.ModuleList | nn.ModuleDict)
            if not path or (module._modules and not inside and not is_container):
                hook = ModelHook(partial(enter, path))
                hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield calls


def make_calls(model: nn.Module, call: Call) -> Iterator[tuple[list[int], Call]]:
    """The call made short, where it has token ids, and the call as it was."""
    args, kwargs = call
    kwargs = {name: x for name, x in kwargs.items() if name not in DROPPED}
    texts = {name: x for name, x in kwargs.items() if not SHAPES.search(name)}
    tensors = [x for x in _tensors((args, texts)) if x.ndim]
    ids = [x for x in tensors if x.ndim == 2 and not x.is_floating_point() and x.shape[1]]
    if ids:
        sizes = {size for p in model.parameters() for size in p.shape}
        free = (n for n in LENGTHS if n not in sizes)
        original = dict.fromkeys(x.shape[1] for x in ids if x.dtype != torch.bool)
        lengths = dict(zip(original, free, strict=False))
        short = _Shortener(ids[0].shape[0], lengths)
        named = {name: short(x) for name, x in kwargs.items()}
        for name, x in named.items():  # without padding
            is_matrix = isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point()
            named[name] = torch.ones_like(x) if "mask" in name and is_matrix else x
        yield list(lengths.values()), (tuple(map(short, args)), named)
    own = [x.shape[1] for x in ids]
    if not token_stacks(dict(model.named_modules())):  # whose inputs have the positions
        sequences = [x for x in tensors if x.is_floating_point() and x.ndim == 3]
        first = any(getattr(m, "batch_first", True) is False for m in model.modules())
        own += [x.shape[0 if first else 1] for x in sequences]
    if max(own, default=0) <= MAX_POSITIONS:
        yield own, (args, kwargs)


@dataclass(frozen=True)
class _Shortener:
    """Cuts the tensors of a call to one sequence of a few positions; shorter ones are repeated."""

    batch: int
    lengths: Mapping[int, int]  # by old length

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Mapping):
            return type(x)({name: self(y) for name, y in x.items()})  # type: ignore[call-arg]
        if type(x) in (list, tuple):
            return type(x)(self(y) for y in x)
        if hasattr(x, "get_seq_length"):  # a cache
            return None
        if not isinstance(x, Tensor) or not x.ndim:
            return x
        if x.shape == (self.batch,) and not x.is_floating_point():  # lengths of the sequences
            return x[:1] * 0 + max(self.lengths.values())
        for axis, size in enumerate(x.shape):
            new = self.lengths.get(size) if axis or x.ndim == 1 else None
            if new is not None:
                x = x.index_select(axis, torch.arange(new, device=x.device) % size)
        batches = [axis for axis in range(min(2, x.ndim - 1)) if x.shape[axis] == self.batch]
        return x.narrow(batches[0], 0, 1) if batches else x


def token_stacks(modules: Mapping[str, nn.Module]) -> list[BlockStack]:
    """The stacks of blocks over (batch, time, dim): without those that begin with a convolution."""
    return [stack for stack in find_stacks(modules) if not _is_convolution(stack.blocks[0])]


def _is_convolution(block: nn.Module) -> bool:
    leaves = (m for m in block.modules() if m._parameters and not m._modules)
    return isinstance(next(leaves, None), nn.modules.conv._ConvNd)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for x in value.values():
            yield from _tensors(x)
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _tensors(x)
