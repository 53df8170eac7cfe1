"""Updates of a model: made one after another, and read from their device only now and then."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.train.compiled import Compiling
from regard.train.config import TrainConfig
from regard.train.feed import Fed, Feed
from regard.train.loss import Objective
from regard.train.luck import Luck, luck_of
from regard.train.parallel import Parallel


class Made(NamedTuple):
    """An update, its numbers still on their device, with what is needed to go back before it.

    >>> luck = luck_of(torch.device("cpu"))
    >>> Made(1, 1e-3, 6, torch.ones(1), torch.ones(1), torch.tensor(1.0), {}, luck, []).step
    1
    """

    step: int
    rate: float
    size: int
    losses: Tensor  # what each of its batches, over all ranks, adds to its loss
    own: Tensor  # and this rank's alone
    norm: Tensor
    place: dict[str, Any]
    luck: Luck
    buffers: list[Tensor]


class Known(NamedTuple):
    """What an update was, read: its loss, the norm of its gradient, its size and its rate.

    >>> Known(1, [0.25, 0.5], 1.0, 6, 1e-3).loss
    0.75
    """

    step: int
    losses: list[float]
    norm: float
    size: int
    rate: float

    @property
    def loss(self) -> float:
        return sum(self.losses)

    @property
    def is_sound(self) -> bool:
        """Whether it was made of numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class NotFinite(Exception):
    """An update whose loss or gradient was no number; nothing was learnt from it or after it."""

    def __init__(self, made: Made, known: Known):
        super().__init__(f"update {made.step}")
        self.made, self.known = made, known


class Updates:
    """Makes updates; on a GPU without ever waiting for one to end.

    θ ← AdamW(θ, clip(∇ Σ_batches total / Σ_batches size))

    There a loss that is no number is noticed by the GPU itself: it leaves this update and all after
    it undone, until the next `read` sees it. On a CPU each update is read before it is taken.
    """

    def __init__(
        self,
        shared: Parallel,
        optimizer: torch.optim.Optimizer,
        feed: Feed,
        config: TrainConfig,
        compiling: Compiling,
    ):
        if config.agree and not draws(shared.model):
            raise ConfigError(
                f"agree: needs a model with dropout, as two passes without it are one, got "
                f"{config.agree} for none; try dropout=0.1, or agree=0"
            )
        self.shared, self.optimizer, self.feed = shared, optimizer, feed
        self.config, self.compiling, self.device = config, compiling, shared.device
        self.runs_ahead = self.device.type == "cuda"
        self.unread: list[Made] = []
        self.halted = torch.zeros((), device=self.device)
        # what ranks ask of each other with every update: how many want to stop, by which signal
        self.says: Callable[[], Sequence[int]] = tuple
        self.heard: list[int] = []

    def make(self, objective: Objective, step: int, rate: float) -> list[Known]:
        """Make update number `step`; what is known of it, where that costs no wait."""
        luck, buffers = luck_of(self.device), self._buffers()
        fed = self.feed.next()
        count, *self.heard = self.shared.ranks.sums(sum(fed.sizes), *self.says())
        with self.shared.ranks.together():
            own = torch.stack(self._backward(objective, fed, max(1, count)))
            losses = self.shared.ranks.add(own.clone())
            norm = self.shared.clip(self.config.clip)
        made = Made(step, rate, count, losses, own, norm, fed.before, luck, buffers)
        self.unread.append(made)
        known = [] if self.runs_ahead else self.read()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.runs_ahead:
            sound = losses.sum().isfinite() & norm.isfinite()
            self.halted = torch.maximum(self.halted, 1.0 - sound.float())
            self.optimizer.found_inf = self.halted  # type: ignore[attr-defined]  # the fused kernel asks
        self.optimizer.step()
        return known

    def read(self) -> list[Known]:
        """What the updates since the last time were; the first that was no number is raised."""
        if not self.unread:
            return []
        made, self.unread = self.unread, []
        numbers = torch.stack([torch.cat([one.losses, one.norm[None]]) for one in made]).tolist()
        known = []
        for one, (*losses, norm) in zip(made, numbers, strict=True):
            known.append(Known(one.step, losses, norm, one.size, one.rate))
            if not known[-1].is_sound:
                self._put_back(one)
                raise NotFinite(one, known[-1])
        return known

    def _backward(self, objective: Objective, fed: Fed, count: int) -> list[Tensor]:
        if not self.shared.model.training:
            self.shared.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, world = [], self.shared.ranks.world
        for n, batch in enumerate(fed.batches):
            total_of = self.compiling.total(objective.total, batch)
            quiet = self.shared.quiet(last=n + 1 == len(fed.batches))
            with self.compiling.shield(batch), quiet:
                with self.autocast():
                    total = total_of(
                        self.shared.called, batch, self.config.smoothing, self.config.agree
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
        return [x.clone() for x in self.shared.buffers]

    @torch.no_grad()
    def _put_back(self, made: Made) -> None:
        self.halted.zero_()
        for x, before in zip(self.shared.buffers, made.buffers, strict=True):
            x.copy_(before)


def draws(model: nn.Module) -> bool:
    """Whether two passes of a model in training differ: whether it drops anything out.

    >>> draws(nn.Sequential(nn.Dropout(0.0))), draws(nn.Sequential(nn.Dropout(0.1)))
    (False, True)
    """
    rates = (
        getattr(m, "p" if isinstance(m, nn.Dropout) else "dropout", 0) for m in model.modules()
    )
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
