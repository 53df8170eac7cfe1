"""Runs that begin at a block: the blocks before it return what they returned in an earlier run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.inspection.adapters.block_stacks import find_stacks

# of an unedited run from a block on, compared with a whole run; relative to the largest number
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


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
                hooks.callback(block.register_forward_hook(partial(record, path)).remove)
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
                block.forward = partial(_return, out)
            yield


def is_close(x: Tensor, expected: Tensor) -> bool:
    """Whether two results differ by rounding only."""
    allowed = TOLERANCE.get(expected.dtype, 3e-2) * expected.abs().max()
    return x.shape == expected.shape and bool((x - expected).abs().max() <= allowed)


def _return(out: Any, *args: Any, **options: Any) -> Any:
    return out


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
