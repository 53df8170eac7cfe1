"""The blocks of a model in a row: where depth is, whoever wrote the model."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from regard.nn import Norm, RecurrentCell


@dataclass
class BlockStack:
    """Blocks on top of each other, and what went into the first and came out of each, run by run.

    `inputs` and `outputs[i]` hold one tensor for each time the stack ran.
    """

    path: str
    blocks: list[nn.Module]
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[list[Tensor]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every block ran, equally often."""
        counts = {len(self.inputs), *(len(out) for out in self.outputs)}
        return len(counts) == 1 and counts != {0}

    def hidden_states(self, run: int = -1) -> list[Tensor]:
        """The stream of one run: before the first block, and after each."""
        return [self.inputs[run], *(out[run] for out in self.outputs)]


@contextmanager
def record_stacks(
    model: nn.Module, *, inputs_require_grad: bool = False
) -> Iterator[list[BlockStack]]:
    """While this lasts, every stack of the model keeps what passes through it.

    With `points` what enters a stack is made a point that a gradient can be asked for, also when it
    is data and nothing before it is learned.
    """
    stacks = find_stacks(model)
    with ExitStack() as hooks:
        for stack in stacks:
            for i, block in enumerate(stack.blocks):
                hooks.callback(_watch(stack, i, block, inputs_require_grad))
        yield stacks


def find_stacks(model: nn.Module) -> list[BlockStack]:
    """Every list of modules of one class, the outermost only: a block's own lists are its inside.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9))
    >>> [(stack.path, len(stack.blocks)) for stack in find_stacks(model)]
    [('encoder.blocks', 2), ('decoder.blocks', 2)]
    """
    found: list[BlockStack] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(stack.path and f"{stack.path}.") for stack in found)
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and not inside:
            blocks = list(module)
            if len({type(block) for block in blocks}) == 1 and _is_block(blocks[0]):
                outputs: list[list[Tensor]] = [[] for _ in blocks]
                found.append(BlockStack(path, blocks, outputs=outputs))
    return found


def _is_block(module: nn.Module) -> bool:
    learned = next(module.parameters(), None) is not None
    return learned and not isinstance(
        module, Norm | RecurrentCell
    )  # these are parts of a step in time


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of what a block was given or gave: alone, in a tuple, by name."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return next((x for x in map(first_tensor, value) if x is not None), None)
    return None


def _watch(stack: BlockStack, i: int, block: nn.Module, points: bool) -> Any:
    me = threading.get_ident()  # another thread's run of the model is not the one asked for

    def enter(block: nn.Module, args: tuple, kwargs: dict | None = None) -> Any:
        if threading.get_ident() != me:
            return None
        x = first_tensor(args) if args else first_tensor(kwargs)
        if x is None:
            return None
        fresh = points and args and args[0] is x and x.is_floating_point() and not x.requires_grad
        x = x.detach().requires_grad_() if fresh else x
        stack.inputs.append(x)
        return ((x, *args[1:]), kwargs) if fresh else None

    def leave(block: nn.Module, args: tuple, out: Any) -> None:
        x = first_tensor(out)
        if x is not None and threading.get_ident() == me:
            stack.outputs[i].append(x)

    hooks = [block.register_forward_hook(leave)]
    if i == 0:
        hooks.append(block.register_forward_pre_hook(enter, with_kwargs=True))
    return lambda: [hook.remove() for hook in hooks]
