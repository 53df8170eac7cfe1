"""Updates of a model: made one after another, and read from their device only now and then."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.train.compilation import CompilePolicy
from regard.train.config import TrainConfig
from regard.train.distributed.parallel import ParallelModel
from regard.train.losses import Objective
from regard.train.prefetch import Prefetcher, UpdateBatches
from regard.train.rng import RngState, get_rng_state


class PendingUpdate(NamedTuple):
    """An update, its numbers still on their device, with what is needed to go back before it.

    >>> luck = get_rng_state(torch.device("cpu"))
    >>> PendingUpdate(1, 1e-3, 6, torch.single_row_kernels(1), torch.single_row_kernels(1), torch.tensor(1.0), {}, luck, []).step
    1
    """

    step: int
    lr: float
    size: int
    losses: Tensor  # what each of its batches, over all ranks, adds to its loss
    local_losses: Tensor  # and this rank's alone
    norm: Tensor
    data_state: dict[str, Any]
    rng_state: RngState
    buffers: list[Tensor]


class UpdateStats(NamedTuple):
    """What an update was, read: its loss, the norm of its gradient, its size and its rate.

    >>> UpdateStats(1, [0.25, 0.5], 1.0, 6, 1e-3).loss
    0.75
    """

    step: int
    losses: list[float]
    norm: float
    size: int
    lr: float

    @property
    def loss(self) -> float:
        return sum(self.losses)

    @property
    def is_finite(self) -> bool:
        """Whether it was made of numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class NonFiniteUpdate(Exception):
    """An update whose loss or gradient was no number; nothing was learnt from it or after it."""

    def __init__(self, pending: PendingUpdate, stats: UpdateStats):
        super().__init__(f"update {pending.step}")
        self.pending, self.stats = pending, stats


class Updater:
    """Makes updates; on a GPU without ever waiting for one to end.

    θ ← AdamW(θ, clip(∇ Σ_batches total / Σ_batches size))

    There a loss that is no number is noticed by the GPU itself: it leaves this update and all after
    it undone, until the next `read` sees it. On a CPU each update is read before it is taken.
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
                f"agree: needs a model with dropout, as two passes without it are one, got "
                f"{config.rdrop} for none; try dropout=0.1, or agree=0"
            )
        self.parallel, self.optimizer, self.prefetcher = parallel, optimizer, prefetcher
        self.config, self.compile_policy, self.device = config, compile_policy, parallel.device
        self.runs_ahead = self.device.type == "cuda"
        self.pending: list[PendingUpdate] = []
        self.found_inf = torch.zeros((), device=self.device)
        # what ranks ask of each other with every update: how many want to stop, by which signal
        self.stop_counts: Callable[[], Sequence[int]] = tuple
        self.stop_totals: list[int] = []

    def step(self, objective: Objective, step: int, lr: float) -> list[UpdateStats]:
        """Make update number `step`; what is known of it, where that costs no wait."""
        luck, buffers = get_rng_state(self.device), self._buffers()
        fed = self.prefetcher.next()
        count, *self.stop_totals = self.parallel.ranks.sum_counts(
            sum(fed.sizes), *self.stop_counts()
        )
        with self.parallel.ranks.collective():
            own = torch.stack(self._backward(objective, fed, max(1, count)))
            losses = self.parallel.ranks.all_reduce(own.clone())
            norm = self.parallel.clip_gradients(self.config.max_grad_norm)
        made = PendingUpdate(step, lr, count, losses, own, norm, fed.before, luck, buffers)
        self.pending.append(made)
        known = [] if self.runs_ahead else self.read_stats()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.runs_ahead:
            sound = losses.sum().isfinite() & norm.isfinite()
            self.found_inf = torch.maximum(self.found_inf, 1.0 - sound.float())
            self.optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]  # the fused kernel asks
        self.optimizer.step()
        return known

    def read_stats(self) -> list[UpdateStats]:
        """What the updates since the last time were; the first that was no number is raised."""
        if not self.pending:
            return []
        made, self.pending = self.pending, []
        numbers = torch.stack([torch.cat([one.losses, one.norm[None]]) for one in made]).tolist()
        known = []
        for one, (*losses, norm) in zip(made, numbers, strict=True):
            known.append(UpdateStats(one.step, losses, norm, one.size, one.lr))
            if not known[-1].is_sound:
                self._put_back(one)
                raise NonFiniteUpdate(one, known[-1])
        return known

    def _backward(self, objective: Objective, fed: UpdateBatches, count: int) -> list[Tensor]:
        if not self.parallel.model.training:
            self.parallel.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, world = [], self.parallel.ranks.world_size
        for n, batch in enumerate(fed.batches):
            total_of = self.compile_policy.loss_function(objective.loss_sum, batch)
            quiet = self.parallel.no_sync(last=n + 1 == len(fed.batches))
            with self.compile_policy.block_signals(batch), quiet:
                with self.autocast():
                    total = total_of(
                        self.parallel.forward_module,
                        batch,
                        self.config.label_smoothing,
                        self.config.rdrop,
                    )
                loss = total / count
                # gradients are averaged over ranks, but the count is already that of all of them
                (loss * world if world > 1 else loss).backward()
            losses.append(loss.detach())
        return losses

    def autocast(self) -> Any:
        """bfloat16 on a GPU unless float32 was asked for."""
        half = self.device.type == "cuda" and self.config.precision != "float32"
        return torch.autocast("cuda", torch.bfloat16) if half else nullcontext()

    def _buffers(self) -> list[Tensor]:
        """Running means and the like, which a forward pass changes even where nothing is learnt."""
        return [x.clone() for x in self.parallel.buffers]

    @torch.no_grad()
    def _put_back(self, made: PendingUpdate) -> None:
        self.found_inf.zero_()
        for x, before in zip(self.parallel.buffers, made.buffers, strict=True):
            x.copy_(before)


def has_dropout(model: nn.Module) -> bool:
    """Whether two passes of a model in training differ: whether it drops anything out.

    >>> has_dropout(nn.Sequential(nn.Dropout(0.0))), has_dropout(nn.Sequential(nn.Dropout(0.1)))
    (False, True)
    """
    rates = (
        getattr(m, "p" if isinstance(m, nn.Dropout) else "dropout", 0) for m in model.modules()
    )
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
