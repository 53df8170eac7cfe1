"""When torch.compile pays, and in which way."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn import Recurrent, RecurrentCell
from regard.train.config import TrainConfig
from regard.train.distributed.parallel import Strategy
from regard.train.signals import block_signals

STEPS = 1000  # to compile takes as long as some hundred updates
PROBE_BATCHES = 6  # batches that show whether their shapes are few or many
FEW = 3  # shapes that are compiled each as it is

Total = Callable[..., Tensor]


class CompilePolicy:
    """Compiles a loss with its model once some batches have shown their shapes.

    Few shapes are compiled each as it is; many once, with sizes left open, or each length would be
    compiled anew. Asked for "fixed" it compiles few shapes alone: open sizes of a translator were
    seen to break torch 2.11's compiler (an assertion in its tiling) on an H200. With `graphs` the
    kernels of few shapes are launched together as a CUDA graph, as small ones end before Python
    has launched the next.

    >>> asked = CompilePolicy("off")
    >>> asked.loss_function(max, {"x": torch.single_row_kernels(1)}) is max
    True
    """

    def __init__(self, mode: str, *, graphs: bool = False):
        self.mode, self.probes_left, self.graphs = mode, PROBE_BATCHES, graphs
        self.shapes: set[Any] = set()
        self.compiled: tuple[Total, Total] | None = None
        self.compiled_shapes: set[Any] = set()  # shapes that an update was made with, compiled

    def block_signals(self, batch: dict[str, Tensor]) -> AbstractContextManager[None]:
        """Around an update: while it may compile, its compile workers outlive a signal."""
        shape = _shape(batch)
        if self.compiled is None or shape in self.compiled_shapes:
            return nullcontext()
        self.compiled_shapes.add(shape)
        return block_signals()

    def loss_function(self, total: Total, batch: dict[str, Tensor]) -> Total:
        """The loss to call for this batch: as it is, or compiled."""
        if self.mode == "off":
            return total
        shape = _shape(batch)
        if self.probes_left:
            self.probes_left -= 1
            self.shapes.add(shape)
            return total
        many = len(self.shapes) > FEW
        if (many and self.mode == "fixed") or not (many or shape in self.shapes):
            return total  # such as the last batch of a part, shorter than the rest
        if self.compiled is None or self.compiled[0] is not total:
            how = "reduce-overhead" if self.graphs and not many else None
            self.compiled = total, torch.compile(total, dynamic=many, mode=how)
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last update's numbers may be let go
        return self.compiled[1]


def _shape(batch: dict[str, Tensor]) -> tuple[Any, ...]:
    return tuple((name, x.shape) for name, x in batch.items())


def build_compile_policy(
    config: TrainConfig, model: nn.Module, device: torch.device, strategy: Strategy = "none"
) -> CompilePolicy:
    """Whether to compile: as asked, or where it pays.

    On a GPU, in long trainings with batches of few shapes, and not around recurrent layers, which
    are loops. As graphs where one batch is an update and no other rank has a part in it: a graph
    writes each gradient where it wrote the last one.

    >>> build_compile_policy(TrainConfig(steps=9), nn.PackedLinear(1, 1), torch.device("cpu")).mode
    'off'
    """
    graphs = device.type == "cuda" and config.accumulate == 1 and strategy == "none"
    if config.compile != "auto":
        return CompilePolicy(config.compile, graphs=graphs)
    loops = any(isinstance(m, nn.RNNBase | RecurrentCell | Recurrent) for m in model.modules())
    pays = device.type == "cuda" and config.steps > STEPS and not loops
    return CompilePolicy("fixed" if pays else "off", graphs=graphs)
