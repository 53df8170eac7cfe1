"""Stacks of blocks in any model: states between them, positions, runs that begin at a block."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.inspection.adapters.module_tracker import ModelHook
from regard.inspection.adapters.snapshot import snapshot
from regard.nn import Norm, RecurrentCell

# of an unedited run from a block on, compared with a whole run; relative to the largest number
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
CACHES = ("past_key_values", "past_key_value", "layer_past")


@dataclass
class BlockStack:
    """A stack of blocks with its recorded hidden states.

    `inputs` and `outputs[i]` hold one tensor per run: what entered the first block, and what block
    i returned.
    """

    path: str
    blocks: list[nn.Module]
    outputs: list[list[Tensor]]
    inputs: list[Tensor] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every block ran, and all equally often."""
        counts = {len(self.inputs), *(len(out) for out in self.outputs)}
        return len(counts) == 1 and counts != {0}

    def hidden_states(self, run: int = -1) -> list[Tensor]:
        """The hidden states of one run: before the first block, and after each block."""
        return [self.inputs[run], *(out[run] for out in self.outputs)]


@contextmanager
def record_stacks(
    model: nn.Module, *, inputs_require_grad: bool = False
) -> Iterator[list[BlockStack]]:
    """Record the hidden states of every stack of the model inside the `with` block.

    With `inputs_require_grad` the input of each stack requires a gradient, also when nothing
    before it is trainable.
    """
    stacks = find_stacks(dict(model.named_modules()))
    with ExitStack() as hooks:
        for stack in stacks:
            _hook_blocks(stack, inputs_require_grad, hooks)
        yield stacks


def find_stacks(modules: Mapping[str, nn.Module]) -> list[BlockStack]:
    """Every ModuleList or Sequential of modules of one class; lists inside a block do not count.

    The blocks of a ModuleList may be of several classes of one file that have parts (Jamba).

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9))
    >>> [(stack.path, len(stack.blocks)) for stack in find_stacks(dict(model.named_modules()))]
    [('encoder.blocks', 2), ('decoder.blocks', 2)]
    """
    stacks: list[BlockStack] = []
    for path, module in modules.items():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or not len(module):
            continue
        inside = any(path.startswith(stack.path and f"{stack.path}.") for stack in stacks)
        if not inside:
            blocks = list(module)
            if _are_alike(module, blocks) and _is_block(blocks[0]):
                stacks.append(BlockStack(path, blocks, [[] for _ in blocks]))
    return stacks


def _are_alike(container: nn.Module, blocks: list[nn.Module]) -> bool:
    kinds = {type(block) for block in blocks}
    if len(kinds) == 1 or not isinstance(container, nn.ModuleList):
        return len(kinds) == 1
    files = {kind.__module__ for kind in kinds}
    return len(files) == 1 and all("Layer" in k.__name__ or "Block" in k.__name__ for k in kinds)


def _is_block(module: nn.Module) -> bool:
    # a list of norms or of cells is one layer's, not a stack in depth
    trainable = next(module.parameters(), None) is not None
    return trainable and not isinstance(module, Norm | RecurrentCell)


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor among the inputs or outputs of a block: a tensor, tuple, list or dict."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            if (x := first_tensor(item)) is not None:
                return x
    return None


def nth_tensor(value: Any, n: int) -> Tensor | None:
    """The tensor at place n among the inputs or outputs of a module."""
    if n == 0:
        return first_tensor(value)
    items = list(value.values() if isinstance(value, dict) else value)
    return items[n] if n < len(items) and isinstance(items[n], Tensor) else None


def _hook_blocks(stack: BlockStack, require_grad: bool, hooks: ExitStack) -> None:
    thread = threading.get_ident()  # runs of the model in other threads are not recorded

    def as_it_is(x: Tensor) -> Tensor:  # the next block may write to it
        return x if torch.is_grad_enabled() else snapshot(x)

    def enter(block: nn.Module, args: tuple, kwargs: dict | None = None) -> Any:
        if threading.get_ident() != thread:
            return None
        if (x := first_tensor(args or kwargs)) is None:
            return None
        replaces = require_grad and args and args[0] is x
        replaces = replaces and x.is_floating_point() and not x.requires_grad
        x = x.detach().requires_grad_() if replaces else x
        stack.inputs.append(as_it_is(x))
        return ((x, *args[1:]), kwargs) if replaces else None

    def leave(i: int, block: nn.Module, args: tuple, out: Any) -> None:
        x = first_tensor(out)
        if x is not None and threading.get_ident() == thread:
            stack.outputs[i].append(as_it_is(x))

    add = stack.blocks[0].register_forward_pre_hook
    hooks.enter_context(add(ModelHook(enter), with_kwargs=True))
    for i, block in enumerate(stack.blocks):
        hooks.enter_context(block.register_forward_hook(ModelHook(partial(leave, i))))


class PrefixReplay:
    """Outputs of all blocks in one run of a model, for later runs that differ from a block on.

    Callers compare an unedited run with the first one (`is_close`): a block may leave more behind
    than its output, such as keys that later blocks read.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=3)).eval()
    >>> tokens, replay = torch.tensor([[1, 2, 3]]), PrefixReplay(model)
    >>> with replay.recording():
    ...     logits = model(tokens)
    >>> with replay.skipping("decoder.blocks.2"):  # only the last block is computed
    ...     bool((model(tokens) == logits).all())
    True
    """

    def __init__(self, model: nn.Module):
        stacks = find_stacks(dict(model.named_modules()))
        self.blocks = {f"{s.path}.{i}": b for s in stacks for i, b in enumerate(s.blocks)}
        self.outputs: dict[str, Any] = {}  # by path, in the order of the calls
        self.repeated: set[str] = set()  # called more than once

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the outputs of the run inside the `with` block."""

        def record(path: str, block: nn.Module, args: tuple, out: Any) -> None:
            if path in self.outputs:
                self.repeated.add(path)
            # cloned, as the next block may change it in place
            self.outputs.setdefault(path, _map_tensors(out, lambda x: x.detach().clone()))

        with ExitStack() as hooks:
            for path, block in self.blocks.items():
                hooks.enter_context(block.register_forward_hook(partial(record, path)))
            yield

    def paths_before(self, path: str) -> list[str]:
        """The blocks that ran once, before the block at or around `path`."""
        order = list(self.outputs)
        at = next((i for i, p in enumerate(order) if f"{path}.".startswith(f"{p}.")), 0)
        return [] if self.repeated else order[:at]

    @contextmanager
    def skipping(self, path: str, copies: int = 1, batch: int | None = None) -> Iterator[None]:
        """Skip the blocks before `path`; their outputs are repeated for `copies` of a batch."""

        def repeat(x: Tensor) -> Tensor:
            is_batch = copies > 1 and x.ndim and len(x) == batch
            return x.repeat(copies, *(1,) * (x.ndim - 1)) if is_batch else x.clone()

        skipped = self.paths_before(path)
        # only the last output of each stack is read; its reader may change it in place
        read = {name.rpartition(".")[0]: name for name in skipped}.values()
        with ExitStack() as undo:
            for name in skipped:
                out = self.outputs[name]
                out = _map_tensors(out, repeat) if name in read else out
                block = self.blocks[name]
                undo.callback(_restore, block, block.__dict__.get("forward"))
                block.forward = lambda *args, out=out, **options: out
            yield


def is_close(x: Tensor, expected: Tensor) -> bool:
    """Whether two results differ by rounding only."""
    allowed = TOLERANCE.get(expected.dtype, 3e-2) * expected.abs().max()
    return x.shape == expected.shape and bool((x - expected).abs().max() <= allowed)


def _restore(block: nn.Module, forward: Any) -> None:
    del block.forward
    if forward is not None:  # one that was set on the instance, as accelerate does
        block.forward = forward


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A value with each tensor replaced; tuples and lists are searched."""
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(_map_tensors(x, function) for x in value)
    return value


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
            add = module.register_forward_pre_hook
            hooks.enter_context(add(enter, with_kwargs=True, prepend=True))
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
