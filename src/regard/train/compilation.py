"""When to use torch.compile, and with which options."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from regard.nn import Recurrent, RecurrentCell
from regard.train.config import TrainConfig
from regard.train.distributed import Strategy
from regard.train.process import block_signals

MIN_STEPS = 1000  # to compile takes as long as some hundred updates
PROBE_BATCHES = 6  # batches whose shapes are observed before compiling
MAX_STATIC_SHAPES = 3  # so many shapes are compiled one by one

LossFunction = Callable[..., Tensor]
Shapes = tuple[tuple[str, torch.Size], ...]  # of the tensors of a batch, by name


class CompilePolicy:
    """Compiles a loss function, model included, after observing the shapes of some batches.

    Few shapes are compiled each with static sizes; many are compiled once with dynamic sizes, or
    each length would be compiled by itself. The mode "fixed" compiles only in the first case:
    dynamic sizes of a translator raise an assertion in the tiling of torch 2.11's compiler on an
    H200. With `graphs`, static shapes are replayed as CUDA graphs: small kernels end before Python
    has launched the next one.
    """

    def __init__(self, mode: str, *, graphs: bool = False):
        self.mode, self.probes_left, self.graphs = mode, PROBE_BATCHES, graphs
        self.shapes: set[Shapes] = set()
        self.compiled: tuple[LossFunction, LossFunction] | None = None  # the original, the compiled
        self.compiled_shapes: set[Shapes] = set()

    def block_signals(self, batch: dict[str, Tensor]) -> AbstractContextManager[None]:
        """Context of an update: if it may compile, its compile workers survive a signal."""
        shape = _shape(batch)
        if self.compiled is None or shape in self.compiled_shapes:
            return nullcontext()
        self.compiled_shapes.add(shape)
        return block_signals()

    def loss_function(self, loss: LossFunction, batch: dict[str, Tensor]) -> LossFunction:
        """The function to call for this batch: `loss`, or `loss` compiled."""
        if self.mode == "off":
            return loss
        shape = _shape(batch)
        if self.probes_left:
            self.probes_left -= 1
            self.shapes.add(shape)
            return loss
        dynamic = len(self.shapes) > MAX_STATIC_SHAPES
        if (dynamic and self.mode == "fixed") or not (dynamic or shape in self.shapes):
            return loss  # such as the last batch of an epoch, shorter than the rest
        if self.compiled is None or self.compiled[0] is not loss:
            mode = "reduce-overhead" if self.graphs and not dynamic else None
            self.compiled = loss, torch.compile(loss, dynamic=dynamic, mode=mode)
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last update's outputs may be reused
        return self.compiled[1]


def _shape(batch: dict[str, Tensor]) -> Shapes:
    return tuple((name, x.shape) for name, x in batch.items())


def build_compile_policy(
    config: TrainConfig, model: nn.Module, device: torch.device, strategy: Strategy = "none"
) -> CompilePolicy:
    """The policy of a config; auto compiles on a GPU, in long trainings, without recurrent layers.

    CUDA graphs need one batch per update and one rank: a graph writes each gradient to the memory
    of the last one.
    """
    graphs = device.type == "cuda" and config.accumulate == 1 and strategy == "none"
    if config.compile != "auto":
        return CompilePolicy(config.compile, graphs=graphs)
    recurrent = any(isinstance(m, nn.RNNBase | RecurrentCell | Recurrent) for m in model.modules())
    pays = device.type == "cuda" and config.steps > MIN_STEPS and not recurrent
    return CompilePolicy("fixed" if pays else "off", graphs=graphs)
