"""The loop: batches become updates; every so often it scores, saves, and asks whether to go on."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from regard.errors import ConfigError, FileError, TrainError
from regard.train.checkpoint.sharded import save_sharded_checkpoint
from regard.train.checkpoint.shards import read_shards
from regard.train.checkpoint.store import (
    Checkpoint,
    average_checkpoints,
    checkpoint_step,
    copy_weights,
    find_last_valid,
    is_sharded,
    list_checkpoints,
    load_checkpoint,
    load_weights,
    merge_tensors,
    save_checkpoint,
    state_tensors,
    verify_checkpoint,
)
from regard.train.compilation import build_compile_policy
from regard.train.config import TrainConfig
from regard.train.distributed.parallel import ParallelModel, choose_strategy
from regard.train.distributed.ranks import Ranks
from regard.train.logger import Logger
from regard.train.losses import Objective
from regard.train.metrics.log import METRICS_FILE, append_metrics, read_metrics, truncate_metrics
from regard.train.optimizer import (
    empty_optimizer_tensors,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from regard.train.prefetch import BatchSource, Prefetcher
from regard.train.progress import Progress
from regard.train.rng import RngState, get_rng_state, parse_rng_state, set_rng_state
from regard.train.schedules import lr_factor
from regard.train.signals import defer_signals, received_signal
from regard.train.updates import NonFiniteUpdate, Updater, UpdateStats

__all__ = [
    "METRICS_FILE",
    "Outcome",
    "BatchSource",
    "Trainer",
    "select_device",
    "read_metrics",
    "run_evaluation",
    "format_scores",
]

CHECKPOINTS = "checkpoints"
Evaluate = Callable[[nn.Module], dict[str, Any]]
Scores = TypeVar("Scores")


class Outcome(NamedTuple):
    """How a training ended: after which update, why, and what the last evaluation gave.

    >>> Outcome(100, "finished", {"loss": 0.5}).reason
    'finished'
    """

    step: int
    reason: str  # finished, no better for a while, interrupted
    scores: dict[str, Any]
    signal: int | None = None


class Trainer:
    """A model, its data and its loss, trained update by update.

    θ ← AdamW(θ, clip(∇ Σ_batches total / Σ_batches size)),   with the rate of the schedule

    With a folder it keeps metrics.jsonl and checkpoints there, and `resume` goes on from the last
    good one: to the same bits on a CPU as if it had never stopped.

    >>> batch = {"tokens": torch.arange(8).repeat(2, 1)}
    >>> class Same:
    ...     def __iter__(self):
    ...         while True:
    ...             yield batch
    ...     def state(self): return {}
    ...     def restore(self, state): pass
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=8, dropout=0.0))
    >>> config = rg.train.TrainConfig(steps=30, warmup=5, device="cpu")
    >>> trainer = Trainer(model, rg.train.objective("next_token"), Same(), config)
    >>> trainer.run().reason
    'finished'
    >>> trainer.loss < 0.5  # it knows by heart what comes next
    True
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: BatchSource,
        config: TrainConfig,
        *,
        folder: str | Path | None = None,
        evaluate: Evaluate | None = None,
        show: bool = False,
        ranks: Ranks | None = None,
        loggers: Sequence[Logger] = (),
    ):
        self.ranks = ranks = ranks or Ranks()
        if ranks.rank:
            _seed(config, ranks, 0)  # each drops out its own
        self.device = device = select_device(config, ranks)
        self.objective, self.batches, self.config = objective, batches, config
        self.evaluate, self.show = evaluate, show and ranks.is_first
        self.loggers = tuple(loggers) if ranks.is_first else ()
        self.folder = None if folder is None else Path(folder)
        self.parallel = ParallelModel(model, choose_strategy(config, ranks), ranks, device)
        self.model = self.parallel.model
        self.optimizer = make_optimizer(self.model, config)
        self.prefetcher = Prefetcher(batches, objective.size, config.accumulate, device)
        compiling = build_compile_policy(config, self.model, device, self.parallel.strategy)
        self.updater = Updater(self.parallel, self.optimizer, self.prefetcher, config, compiling)
        self.step, self.loss, self.best, self.stale_evaluations = 0, math.nan, None, 0
        self.scores: dict[str, Any] = {}
        self.last_update: UpdateStats | None = None
        self.started_at = time.monotonic()

    def run(self) -> Outcome:
        """Train until the last step, until it gets no better, or until asked to stop."""
        self.started_at = time.monotonic()
        progress = Progress(self.config.steps) if self.show else None
        many = (
            self.ranks.world_size > 1
        )  # who started them may ask each of them, and more than once
        with defer_signals(repeatedly=many) as asked, progress or nullcontext():
            reason, self.updater.stop_counts = "finished", asked.counts
            try:
                while self.step < self.config.steps:
                    if self._has_waited():
                        reason = "no better for a while"
                        self.save()
                        break
                    self._advance(progress)
                    signal = received_signal(self.updater.stop_totals) if many else asked.signal
                    if signal is not None:  # all stop after the same update, or none
                        self.save()
                        return Outcome(self.step, "interrupted", self.scores, signal)
            except NonFiniteUpdate as found:
                self._stop_at(found)
            finally:
                self.prefetcher.close()
            self._average(progress)
        self.model = self.parallel.full_model()
        return Outcome(self.step, reason, self.scores)

    def resume(self) -> list[str]:
        """Go back to the last good checkpoint; what is wrong with newer ones comes back."""
        if self.folder is None:
            raise ConfigError("folder: needs one to resume from, got none")
        place, wrong = self.ranks.run_on_first(self._last_good)
        if place is None:
            return wrong
        told = self._read(Path(place))
        state = told.state
        self.step, self.best, self.stale_evaluations = told.step, state["best"], state["waited"]
        self.scores = state["scores"]
        self.prefetcher.restore(state["data"])
        self._take_luck(state["luck"])
        return wrong

    def _last_good(self) -> tuple[str | None, list[str]]:
        assert self.folder is not None
        place, wrong = find_last_valid(self.folder / CHECKPOINTS)
        if place is None and wrong:
            raise FileError(f"{self.folder}: needs one whole checkpoint, got {'; '.join(wrong)}")
        truncate_metrics(self.folder, 0 if place is None else checkpoint_step(place))
        return None if place is None else str(place), wrong

    def _read(self, place: Path) -> Checkpoint:
        """Fill model and optimizer from a checkpoint, whichever way it was written."""
        if self.parallel.strategy == "fsdp" and is_sharded(place):
            told, room = verify_checkpoint(place), empty_optimizer_tensors(self.model)
            read_shards(merge_tensors(state_tensors(self.model), room), place)
            found = Checkpoint(told["step"], {}, room, told["state"])
        else:
            found = load_checkpoint(place)
            load_weights(self.model, found.model, str(self.folder))
        load_optimizer_tensors(self.model, self.optimizer, found.optimizer)
        return found

    def _take_luck(self, kept: Any) -> None:
        """Go on with the luck of the same rank; one that was not there before gets its own."""
        kept = kept if isinstance(kept, list) else [kept]
        if self.ranks.rank < len(kept):
            set_rng_state(parse_rng_state(kept[self.ranks.rank]), self.device)
        else:
            _seed(self.config, self.ranks, self.step)

    def save(self, rewind_to: tuple[dict[str, Any], RngState] | None = None) -> None:
        """Write a checkpoint; `before` is the data's place and the luck to go on from instead."""
        self._learn(self.updater.read_stats())
        if self.folder is None:
            return
        data, luck = rewind_to or (self.prefetcher.data_state, get_rng_state(self.device))
        lucks = self.ranks.all_gather(luck.to_hex())
        state = {"data": data, "luck": lucks if len(lucks) > 1 else lucks[0], "best": self.best}
        state |= {"waited": self.stale_evaluations, "scores": self.scores}
        place = self.folder / CHECKPOINTS
        which = {"keep": self.config.keep_last, "every": self.config.save_every}
        optimizer = optimizer_tensors(self.model, self.optimizer)
        if self.parallel.strategy == "fsdp":
            tensors = merge_tensors(state_tensors(self.model), optimizer)
            save_sharded_checkpoint(self.step, tensors, state, place, **which, ranks=self.ranks)
            return

        def write() -> None:
            copies = {name: x.cpu().clone().contiguous() for name, x in optimizer.items()}
            checkpoint = Checkpoint(self.step, copy_weights(self.model), copies, state)
            save_checkpoint(checkpoint, place, **which)

        self.ranks.run_on_first(write)

    def _advance(self, progress: Progress | None) -> None:
        """One update, and what is due after it."""
        config = self.config
        self._learn(self._update(), progress)
        last = self.step == config.steps
        logs, evaluates, saves = (
            last or self.step % every == 0
            for every in (config.log_every, config.evaluate_every, config.save_every)
        )
        if logs or evaluates or saves:
            self._learn(self.updater.read_stats(), progress)
        if logs and (k := self.last_update) is not None:
            self._log({"loss": k.loss, "lr": k.lr, "norm": k.norm, "tokens": k.size})
        if self.evaluate is not None and evaluates:
            self._score(progress)
        if saves:
            self.save()

    def _update(self) -> list[UpdateStats]:
        """One more update; what is known by now, of this one or of those before it."""
        c, step = self.config, self.step + 1
        share = lr_factor(
            step,
            schedule=c.schedule,
            warmup=c.warmup,
            steps=c.steps,
            min_lr_fraction=c.min_lr_fraction,
        )
        known = self.updater.step(self.objective, step, c.lr * share)
        self.step = step
        return known

    def _learn(self, known: list[UpdateStats], progress: Progress | None = None) -> None:
        for one in known:
            self.last_update, self.loss = one, one.loss
            if progress is not None:
                progress.update(one.step, one.loss, one.size, one.lr)

    def _stop_at(self, found: NonFiniteUpdate) -> None:
        """Nothing was learnt from the bad batch or after it, so the weights are still good."""
        made, known = found.pending, found.stats
        self.step = made.step - 1
        self.save((made.data_state, made.rng_state))
        bad = next((n for n, x in enumerate(known.losses) if not math.isfinite(x)), 0)
        hurt = self.ranks.all_gather(bool(made.local_losses.isfinite().all()))
        where = f" of rank {hurt.index(False)}" if len(hurt) > 1 and not all(hurt) else ""
        kept = f"the state before it is in {self.folder}" if self.folder else "nothing was changed"
        raise TrainError(
            f"loss: needs a finite number, got {known.loss} (gradient norm {known.norm}) in update "
            f"{made.step}, its batch {bad + 1}{where} from data position {made.data_state}; {kept}; "
            f"try a lower lr, a longer warmup, or a look at that batch"
        ) from None

    def _score(self, progress: Progress | None) -> None:
        assert self.evaluate is not None
        self.scores = scores = self._scored()
        self._log({f"valid_{name}": value for name, value in scores.items()})
        if self.config.monitor not in scores:
            raise ConfigError(
                f"watch: needs one of {', '.join(scores)}, got {self.config.monitor!r}; try loss"
            )
        if self.config.is_better(scores[self.config.monitor], self.best):
            self.best, self.stale_evaluations = scores[self.config.monitor], 0
        else:
            self.stale_evaluations += 1
        if progress is not None:
            progress.print_line(f"step {self.step}  valid: {format_scores(scores)}")

    def _scored(self) -> dict[str, Any]:
        """What the first rank's evaluation gives; the others lend their parts, and wait."""
        evaluate, whole = self.evaluate, self.parallel.full_model()
        assert evaluate is not None
        return self.ranks.run_on_first(lambda: run_evaluation(whole, evaluate))

    def _has_waited(self) -> bool:
        return self.config.patience is not None and self.stale_evaluations >= self.config.patience

    def _average(self, progress: Progress | None) -> None:
        """The mean of the last checkpoints becomes the model, and is scored."""
        if self.config.average_last < 2 or self.folder is None:
            return
        places = list_checkpoints(self.folder / CHECKPOINTS)[-self.config.average_last :]
        load_weights(self.model, average_checkpoints(places))
        if self.evaluate is not None:
            self.scores = self._scored()
            if progress is not None:
                progress.print_line(
                    f"mean of the last {len(places)} checkpoints: {format_scores(self.scores)}"
                )

    def _log(self, values: dict[str, Any]) -> None:
        seconds = round(time.monotonic() - self.started_at, 2)
        line = {"step": self.step, **values, "seconds": seconds}
        if self.folder is not None and self.ranks.is_first:
            append_metrics(self.folder, line)
        for listener in self.loggers:
            listener(line)


def _seed(config: TrainConfig, ranks: Ranks, step: int) -> None:
    torch.manual_seed(hash((config.seed, step, ranks.rank)) % (1 << 63))


def run_evaluation(model: nn.Module, evaluate: Callable[[nn.Module], Scores]) -> Scores:
    """An evaluation that leaves no trace: in evaluation mode, without gradients or spent luck."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            return evaluate(model)
    finally:
        model.train(was)


def format_scores(scores: dict[str, Any]) -> str:
    """Scores in a line.

    >>> format_scores({"loss": 0.25, "exact": 0.5, "signature": "x"})
    'loss 0.2500, exact 0.5000'
    """
    return ", ".join(f"{k} {v:.4f}" for k, v in scores.items() if isinstance(v, int | float))


def select_device(config: TrainConfig, ranks: Ranks | None = None) -> torch.device:
    """Where to train; bf16 is refused on a CPU, where it is a hundred times slower.

    >>> select_device(TrainConfig(steps=1, device="cpu"))
    device(type='cpu')
    """
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise ConfigError("device: needs a CUDA device for cuda, got none here; try cpu")
    on_gpu = there and config.device != "cpu"
    device = torch.device("cpu")
    if on_gpu:  # without ranks at hand, the one that `join` has set
        device = torch.device("cuda", ranks.local_rank if ranks else torch.cuda.current_device())
    if config.precision == "bf16" and not on_gpu:
        raise ConfigError("precision: needs a CUDA device for bf16, got cpu; try float32")
    return device
