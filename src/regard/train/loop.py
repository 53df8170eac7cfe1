"""The training loop: updates, logging, evaluation, checkpoints, early stopping and resume.

    trainer = Trainer(model, objective("next_token"), batches, TrainConfig(steps=1000))
    outcome = trainer.run()

`Trainer.run` is the loop, `Updater.step` (train/updates.py) one update: forward, loss (of
train/losses.py), backward, clip, step.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.errors import ConfigError, FileError, TrainError, check_choice, counted
from regard.nn.low_rank import add_low_rank, without_low_rank
from regard.train.checkpoint import (
    MODEL,
    Checkpoint,
    average_checkpoints,
    checkpoint_step,
    find_best,
    find_last_valid,
    list_checkpoints,
    load_checkpoint,
    merge_tensors,
    read_shards,
    remove_best_after,
    save_checkpoint,
    save_sharded_checkpoint,
    verify_checkpoint,
)
from regard.train.config import TrainConfig
from regard.train.distributed import ParallelModel, Ranks, choose_strategy, select_device
from regard.train.evaluation import format_scores, run_evaluation
from regard.train.losses import Objective
from regard.train.metrics import Logger, append_metrics, truncate_metrics
from regard.train.prefetch import BatchSource, Prefetcher
from regard.train.process import Progress, RngState, defer_signals, received_signal
from regard.train.updates import NonFiniteUpdate, Updater, UpdateStats, build_compile_policy
from regard.train.weights import (
    copy_weights,
    empty_optimizer_tensors,
    freeze_parameters,
    load_optimizer_tensors,
    load_weights,
    make_optimizer,
    optimizer_tensors,
    state_tensors,
)

CHECKPOINTS = "checkpoints"
Evaluate = Callable[[nn.Module], dict[str, Any]]


class Outcome(NamedTuple):
    """How a training ended: its last update, the reason, and the scores of the final weights.

    The scores are those of `Trainer.evaluate`; `regard.runs.fit` puts those on the test split.

    `weights_step` is the update that the final weights are from; None for an average.
    """

    step: int
    reason: str  # finished, stopped early, interrupted
    scores: dict[str, Any]
    signal: int | None = None
    weights_step: int | None = None
    folder: Path | None = None  # of the run
    damaged: Sequence[str] = ()  # why newer checkpoints than that of the resumed run were skipped


class Trainer:
    """Trains a model on batches with AdamW.

    θ ← AdamW(θ, clip(∇ Σ_batches loss_sum / Σ_batches size)),   with the scheduled learning rate

    The final weights are those of the best evaluation, if there is one (`config.final`). With a
    folder it writes metrics.jsonl and checkpoints there, and `resume` continues from the last valid
    one: bit for bit, on a CPU, as if it had never stopped.

    Args:
        model: the module to train; it is moved to the config's device.
        objective: the loss.
        batches: an endless source of batches, with a state that can be saved and restored.
        config: hyperparameters.
        folder: of the run; None keeps nothing on disk.
        evaluate: computes validation scores of a model.
        show: print progress.
        unit: what the loss is a mean over, for the printed speed.
        ranks: of a distributed training; all of them build a Trainer.
        loggers: each is called with every line of metrics, on rank 0.

    >>> batches = rg.data.GeneratedBatches(lambda n: {"tokens": torch.arange(8).repeat(2, 1)})
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=8, dropout=0.0))
    >>> config = rg.train.TrainConfig(steps=30, warmup=5, device="cpu")
    >>> trainer = Trainer(model, rg.train.objective("next_token"), batches, config)
    >>> trainer.run().reason, trainer.loss < 0.5  # memorised
    ('finished', True)
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
        unit: str = "tokens",
        ranks: Ranks | None = None,
        loggers: Sequence[Logger] = (),
    ):
        self.ranks = ranks = ranks or Ranks()
        if ranks.rank:
            _seed(config, ranks, 0)  # each rank has its own dropout
        self.device = device = select_device(config, ranks)
        self.objective, self.batches, self.config = objective, batches, config
        self.evaluate, self.show, self.unit = evaluate, show and ranks.is_first, unit
        self.loggers = tuple(loggers) if ranks.is_first else ()
        self.folder = None if folder is None else Path(folder)
        freeze_parameters(model, config.freeze)
        if config.low_rank:
            add_low_rank(model, config.low_rank)
        self.parallel = ParallelModel(model, choose_strategy(config, ranks), ranks, device)
        self.model = self.parallel.model
        self.optimizer = make_optimizer(self.model, config)
        self.prefetcher = Prefetcher(batches, objective.size, config.accumulate, device)
        policy = build_compile_policy(config, self.model, device, self.parallel.strategy)
        self.updater = Updater(self.parallel, self.optimizer, self.prefetcher, config, policy)
        self.step, self.loss, self.stale_evaluations = 0, math.nan, 0
        self.best: float | None = None
        self.best_weights: Checkpoint | None = None  # only without a folder
        self.scores: dict[str, Any] = {}
        self.last_update: UpdateStats | None = None
        self.started_at = time.monotonic()
        self.progress: Progress | None = None  # while it runs, if shown

    def run(self) -> Outcome:
        """Train until the last step, early stopping, or a signal."""
        config, self.started_at = self.config, time.monotonic()
        self.progress = Progress(config.steps, unit=self.unit) if self.show else None
        # a launcher may signal each rank, and more than once
        distributed, reason = self.ranks.world_size > 1, "finished"
        with defer_signals(repeatedly=distributed) as request, self.progress or nullcontext():
            self.updater.stop_counts = request.counts
            try:
                while self.step < config.steps:
                    if config.patience is not None and self.stale_evaluations >= config.patience:
                        reason = "stopped early"
                        self.save()
                        break
                    step = self.step + 1
                    self._record(self.updater.step(self.objective, step, config.lr_at(step)))
                    self.step = step  # a bad update has raised: the state is that before it
                    logs, evaluates, saves = (
                        step == config.steps or step % every == 0
                        for every in (config.log_every, config.evaluate_every, config.save_every)
                    )
                    if logs or evaluates or saves:
                        self._record(self.updater.read_stats())
                    if logs:
                        self._log_update()
                    if evaluates and self.evaluate is not None:
                        self._evaluate(self.evaluate)
                    if saves:
                        self.save()
                    totals = self.updater.stop_totals
                    signal = received_signal(totals) if distributed else request.signal
                    if signal is not None:  # all ranks stop after the same update
                        self.save()
                        return Outcome(self.step, "interrupted", self.scores, signal)
            except NonFiniteUpdate as error:
                self._raise_non_finite(error)
            finally:
                self.prefetcher.close()
            weights_step = self._choose_weights()
        self.model = without_low_rank(self.parallel.full_model())
        return Outcome(self.step, reason, self.scores, weights_step=weights_step)

    def resume(self) -> list[str]:
        """Restore the last valid checkpoint; returns the errors of newer ones."""
        if self.folder is None:
            raise ConfigError("folder: needs one to resume from, got none")
        name, problems = self.ranks.run_on_first(self._find_checkpoint)
        if name is None:
            return problems
        path = self.folder / CHECKPOINTS / name
        step = checkpoint_step(path)
        if self.config.steps < step:
            raise ConfigError(
                f"steps: needs at least {step}, the saved step of {self.folder}, got "
                f"{self.config.steps}; try steps={step} to end there, or more to go on"
            )
        checkpoint = self._load(path)
        self.step, state = checkpoint.step, checkpoint.state
        self.best, self.stale_evaluations = state["best"], state["stale_evaluations"]
        self.scores = state["scores"]
        if self.updater.scaler is not None:
            self.updater.scaler.load_state_dict(state["scaler"])
            self.updater.skipped = state["skipped"]
        self.prefetcher.restore(state["data_state"])
        if self.ranks.rank < len(state["rng_state"]):
            RngState.from_hex(state["rng_state"][self.ranks.rank]).restore(self.device)
        else:  # a new rank has no saved random state
            _seed(self.config, self.ranks, self.step)
        return problems

    def _find_checkpoint(self) -> tuple[str | None, list[str]]:
        assert self.folder is not None
        path, problems = find_last_valid(self.folder / CHECKPOINTS)
        if path is None and problems:
            raise FileError(f"{self.folder}: needs one whole checkpoint, got {'; '.join(problems)}")
        step = 0 if path is None else checkpoint_step(path)
        truncate_metrics(self.folder, step)
        remove_best_after(self.folder / CHECKPOINTS, step)
        return None if path is None else path.name, problems

    def _load(self, path: Path) -> Checkpoint:
        """Load model and optimizer from a checkpoint, in shards or in one file."""
        if self.parallel.strategy == "fsdp" and not (path / MODEL).exists():
            header, optimizer = verify_checkpoint(path), empty_optimizer_tensors(self.model)
            read_shards(merge_tensors(state_tensors(self.model), optimizer), path)
            checkpoint = Checkpoint(header["step"], {}, optimizer, header["state"])
        else:
            checkpoint = load_checkpoint(path)
            load_weights(self.model, checkpoint.model, str(self.folder))
        load_optimizer_tensors(self.model, self.optimizer, checkpoint.optimizer)
        return checkpoint

    def save(self, rewind_to: tuple[dict[str, Any], RngState] | None = None) -> None:
        """Write a checkpoint; `rewind_to` replaces the current data and random state in it."""
        self._record(self.updater.read_stats())
        if self.folder is None:
            return
        data, rng = rewind_to or (self.prefetcher.data_state, RngState.current(self.device))
        state = {
            "data_state": data,
            "rng_state": self.ranks.all_gather(rng.to_hex()),  # one per rank
            "best": self.best,
            "stale_evaluations": self.stale_evaluations,
            "scores": self.scores,
        }
        if (scaler := self.updater.scaler) is not None:
            state |= {"scaler": scaler.state_dict(), "skipped": self.updater.skipped}
        folder = self.folder / CHECKPOINTS
        keep, every = self.config.keep_last, self.config.save_every
        optimizer = optimizer_tensors(self.model, self.optimizer)
        if self.parallel.strategy == "fsdp":
            tensors = merge_tensors(state_tensors(self.model), optimizer)
            save_sharded_checkpoint(
                self.step, tensors, state, folder, keep=keep, every=every, ranks=self.ranks
            )
            return

        def write() -> None:
            copies = {name: x.cpu().clone().contiguous() for name, x in optimizer.items()}
            checkpoint = Checkpoint(self.step, copy_weights(self.model), copies, state)
            save_checkpoint(checkpoint, folder, keep=keep, every=every)

        self.ranks.run_on_first(write)

    def _log_update(self) -> None:
        stats = self.last_update
        assert stats is not None  # read just before
        values = {"loss": stats.loss, "lr": stats.lr, "count": stats.size}
        if not stats.is_skipped:
            values["grad_norm"] = stats.norm
        if (scaler := self.updater.scaler) is not None:
            values |= {"loss_scale": scaler.get_scale(), "skipped": self.updater.skipped}
        self._log(values)

    def _record(self, stats: list[UpdateStats]) -> None:
        for update in stats:
            self.last_update, self.loss = update, update.loss
            if self.progress is not None:
                self.progress.update(update.step, update.loss, update.size, update.lr)

    def _raise_non_finite(self, error: NonFiniteUpdate) -> None:
        """Save the state before the bad update, which no weight has been changed by, and raise."""
        update, stats = error.pending, error.stats
        self.step = update.step - 1
        self.save((update.data_state, update.rng_state))
        bad = next((n for n, x in enumerate(stats.losses) if not math.isfinite(x)), 0)
        finite = self.ranks.all_gather(bool(update.local_losses.isfinite().all()))
        rank = f" of rank {finite.index(False)}" if len(finite) > 1 and not all(finite) else ""
        state = f"the state before it is in {self.folder}" if self.folder else "nothing was changed"
        raise TrainError(
            f"loss: needs a finite number, got {stats.loss} (gradient norm {stats.norm}) in update "
            f"{update.step}, its batch {bad + 1}{rank} from data position {update.data_state}; "
            f"{state}; try a lower lr, a longer warmup, or a look at that batch"
        ) from None

    def evaluate_start(self) -> None:
        """Score the weights that the training begins with: they are the best until others are."""
        if self.evaluate is not None:
            self._evaluate(self.evaluate)

    def _evaluate(self, evaluate: Evaluate) -> None:
        """Score the full model on rank 0, while the others wait, and save the best weights."""
        model = self.parallel.full_model()
        self.scores = scores = self.ranks.run_on_first(run_evaluation, model, evaluate)
        self._log({f"valid_{name}": value for name, value in scores.items()})
        check_choice("monitor", self.config.monitor, scores)
        value = scores[self.config.monitor]
        if self.config.is_better(value, self.best):
            self.best, self.stale_evaluations = value, 0
        else:
            self.stale_evaluations += 1
        # of equal ones the last, which has been trained for longer
        if self.config.final == "best" and value == self.best:
            self._save_best(model)
        self._print(f"step {self.step}  valid: {format_scores(scores)}")

    def _save_best(self, model: nn.Module) -> None:
        """Save the weights and scores of the best evaluation so far."""

        def write() -> None:
            checkpoint = Checkpoint(self.step, copy_weights(model), {}, {"scores": self.scores})
            if self.folder is None:
                self.best_weights = checkpoint
            else:
                save_checkpoint(checkpoint, self.folder / CHECKPOINTS, best=True)

        if self.folder is None:  # no rank has files to share
            write()
        else:
            self.ranks.run_on_first(write)

    def _choose_weights(self) -> int | None:
        """Put the final weights into the model; returns their update, or None for an average."""
        best, line = self.best_weights, ""
        if self.folder is not None:
            folder = self.folder / CHECKPOINTS
            if self.config.average_last > 1:
                paths = list_checkpoints(folder)[-self.config.average_last :]
                load_weights(self.model, average_checkpoints(paths))
                if self.evaluate is not None:
                    model = self.parallel.full_model()
                    self.scores = self.ranks.run_on_first(run_evaluation, model, self.evaluate)
                line = f"mean of the last {counted(len(paths), 'checkpoint')}"
            elif self.config.final == "best" and (path := find_best(folder, self.step)) is not None:
                best = load_checkpoint(path)
        if not line and best is not None and best.step < self.step:
            load_weights(self.model, best.model)
            self.scores, line = best.state["scores"], f"best, of step {best.step}"
        if line:
            self._print(f"{line}: {format_scores(self.scores)}")
        return self.step if not line else best and best.step

    def _print(self, line: str) -> None:
        if self.progress is not None:
            self.progress.print_line(line)

    def _log(self, values: dict[str, Any]) -> None:
        seconds = round(time.monotonic() - self.started_at, 2)
        line = {"step": self.step, **values, "seconds": seconds}
        if self.folder is not None and self.ranks.is_first:
            append_metrics(self.folder, line)
        for logger in self.loggers:
            logger(line)


def _seed(config: TrainConfig, ranks: Ranks, step: int) -> None:
    torch.manual_seed(hash((config.seed, step, ranks.rank)) % (1 << 63))
