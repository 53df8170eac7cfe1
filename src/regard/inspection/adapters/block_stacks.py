"""Stacks of blocks in any model, and the hidden states between the blocks."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.inspection.adapters.model_hook import ModelHook
from regard.inspection.adapters.snapshot import snapshot
from regard.nn import Norm, RecurrentCell


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
            for hook in _hook_blocks(stack, inputs_require_grad):
                hooks.callback(hook.remove)
        yield stacks


def find_stacks(modules: Mapping[str, nn.Module]) -> list[BlockStack]:
    """Every ModuleList or Sequential of modules of one class; lists inside a block do not count.

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
            if len({type(block) for block in blocks}) == 1 and _is_block(blocks[0]):
                stacks.append(BlockStack(path, blocks, [[] for _ in blocks]))
    return stacks


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


def _hook_blocks(stack: BlockStack, require_grad: bool) -> list[RemovableHandle]:
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

    first = stack.blocks[0].register_forward_pre_hook(ModelHook(enter), with_kwargs=True)
    blocks = enumerate(stack.blocks)
    return [
        first,
        *(block.register_forward_hook(ModelHook(partial(leave, i))) for i, block in blocks),
    ]
