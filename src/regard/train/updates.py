"""One optimizer update: forward, loss, backward, clip, step; and when torch.compile pays.

stats = updater.step(objective, 1, lr=1e-3)  # on a GPU [], as losses stay there
stats = updater.read_stats()                 # until they are read
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn import Recurrent, RecurrentCell
from regard.train.config import TrainConfig
from regard.train.distributed import ParallelModel, Strategy
from regard.train.losses import Objective
from regard.train.prefetch import Prefetcher
from regard.train.process import RngState, block_signals

MIN_STEPS = 1000  # to compile takes as long as some hundred updates
PROBE_BATCHES = 6  # batches whose shapes are observed before compiling
MAX_STATIC_SHAPES = 3  # so many shapes are compiled one by one
MAX_SKIPPED = 20  # updates in a row: halved so often, the initial scale of 65,536 is below 0.1

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


class PendingUpdate(NamedTuple):
    """An update with its numbers still on the device, and the state before it."""

    step: int
    lr: float
    size: int
    losses: Tensor  # of each batch, summed over ranks; they add up to the update's loss
    local_losses: Tensor  # of this rank alone
    norm: Tensor
    data_state: dict[str, Any]
    rng_state: RngState
    buffers: list[Tensor]


class UpdateStats(NamedTuple):
    """Loss, gradient norm, size (tokens or examples) and learning rate of an update."""

    step: int
    losses: list[float]
    norm: float
    size: int
    lr: float

    @property
    def is_skipped(self) -> bool:
        """Whether scaled float16 gradients overflowed, so that no weight was changed."""
        return math.isfinite(self.loss) and not math.isfinite(self.norm)

    @property
    def loss(self) -> float:
        return sum(self.losses)


class NonFiniteUpdate(Exception):
    """An update with a NaN or infinite loss or gradient; it and later ones changed no weight."""

    def __init__(self, pending: PendingUpdate, stats: UpdateStats):
        super().__init__(f"update {pending.step}")
        self.pending, self.stats = pending, stats


class Updater:
    """Makes updates; on a GPU without a synchronisation.

    θ ← AdamW(θ, clip(∇ Σ_batches loss_sum / Σ_batches size))

    On a GPU the fused optimizer itself skips a non-finite update and all that follow, until the
    next `read_stats` raises. On a CPU every update is read before it is applied.

    In fp16 the loss is scaled, so that small gradients do not vanish. An update whose scaled
    gradients overflow is skipped and counted, and the scale is halved; after 2,000 updates
    without one it is doubled.
    """

    def __init__(
        self,
        parallel: ParallelModel,
        optimizer: torch.optim.Optimizer,
        prefetcher: Prefetcher,
        config: TrainConfig,
        compile_policy: CompilePolicy,
    ):
        if config.rdrop and not has_dropout(parallel.model):
            raise ConfigError(
                f"rdrop: needs a model with dropout, as two passes without it are one, got "
                f"{config.rdrop} for none; try dropout=0.1, or rdrop=0"
            )
        self.parallel, self.optimizer, self.prefetcher = parallel, optimizer, prefetcher
        self.config, self.compile_policy, self.device = config, compile_policy, parallel.device
        self.runs_ahead = self.device.type == "cuda"
        self.pending: list[PendingUpdate] = []
        self.found_inf = torch.zeros((), device=self.device)
        half = self.runs_ahead if config.precision == "auto" else config.precision != "float32"
        is_fp16 = config.precision == "fp16"
        self.dtype = (torch.float16 if is_fp16 else torch.bfloat16) if half else None
        self.scaler = torch.amp.GradScaler(self.device.type) if is_fp16 else None
        self.skipped = self.skipped_in_a_row = 0
        # ranks with a stop request, by signal: summed over ranks with every update
        self.stop_counts: Callable[[], Sequence[int]] = tuple
        self.stop_totals: list[int] = []

    def step(self, objective: Objective, step: int, lr: float) -> list[UpdateStats]:
        """Make update number `step`; returns its stats where that needs no synchronisation."""
        ranks, model, c = self.parallel.ranks, self.parallel.model, self.config
        rng = RngState.current(self.device)
        # running statistics, which a forward pass changes even in a skipped update
        buffers = [x.clone() for x in self.parallel.buffers]
        update = self.prefetcher.next()
        size, *self.stop_totals = ranks.sum_counts(sum(update.sizes), *self.stop_counts())
        if not model.training:  # to set it walks over all modules
            model.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        with ranks.collective():
            for n, batch in enumerate(update.batches):
                loss_sum = self.compile_policy.loss_function(objective.loss_sum, batch)
                no_sync = self.parallel.no_sync(last=n + 1 == len(update.batches))
                with self.compile_policy.block_signals(batch), no_sync:
                    with self._autocast():
                        total = loss_sum(
                            self.parallel.forward_module, batch, c.label_smoothing, c.rdrop
                        )
                    loss = total / max(1, size)
                    # DDP and FSDP average gradients over ranks, but `size` is already of all ranks
                    scaled = loss * ranks.world_size if ranks.world_size > 1 else loss
                    (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
                losses.append(loss.detach())
            local = torch.stack(losses)
            totals = ranks.all_reduce(local.clone())
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = self.parallel.clip_gradients(c.max_grad_norm)
        self.pending.append(
            PendingUpdate(step, lr, size, totals, local, norm, update.before, rng, buffers)
        )
        stats = [] if self.runs_ahead else self.read_stats()  # raises for a non-finite update
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.runs_ahead or self.scaler is not None:
            self._skip_non_finite(totals, norm)
        self.optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        return stats

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext()

    def _skip_non_finite(self, losses: Tensor, norm: Tensor) -> None:
        """Let the fused optimizer skip this update on the device if a loss or gradient is bad."""
        overflow = ~norm.isfinite()
        # with a scaler an overflow skips this update, without one also all that follow
        bad = ~losses.sum().isfinite() | (overflow if self.scaler is None else False)
        self.found_inf = torch.maximum(self.found_inf, bad.float())
        skips = torch.maximum(self.found_inf, overflow.float())
        self.optimizer.found_inf = skips  # type: ignore[attr-defined]  # read by the fused kernel

    def read_stats(self) -> list[UpdateStats]:
        """The stats of the updates since the last call; the first non-finite one raises."""
        if not self.pending:
            return []
        pending, self.pending = self.pending, []
        # one transfer for all of them
        values = torch.stack([torch.cat([x.losses, x.norm[None]]) for x in pending]).tolist()
        stats = []
        for update, (*losses, norm) in zip(pending, values, strict=True):
            stats.append(UpdateStats(update.step, losses, norm, update.size, update.lr))
            if self.scaler is not None and stats[-1].is_skipped:
                self.skipped += 1
                self.skipped_in_a_row += 1
                if self.skipped_in_a_row < MAX_SKIPPED:
                    continue
            self.skipped_in_a_row = 0
            if not (math.isfinite(stats[-1].loss) and math.isfinite(norm)):
                self.found_inf.zero_()
                for x, before in zip(self.parallel.buffers, update.buffers, strict=True):
                    x.copy_(before)
                raise NonFiniteUpdate(update, stats[-1])
        return stats


def has_dropout(model: nn.Module) -> bool:
    """Whether any module of a model has a positive dropout rate."""
    names = ((m, "p" if isinstance(m, nn.Dropout) else "dropout") for m in model.modules())
    rates = (getattr(m, name, 0) for m, name in names)
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
