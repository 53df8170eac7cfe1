"""The loop: batches become updates; every so often it scores, saves, and asks whether to go on."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, FileError, TrainError
from regard.train.checkpoint import (
    Checkpoint,
    average,
    checkpoints,
    fill,
    last_good,
    save_checkpoint,
    weights_of,
    write_text,
)
from regard.train.config import TrainConfig
from regard.train.interrupts import interrupts
from regard.train.loss import Objective
from regard.train.progress import Progress
from regard.train.schedules import rate_at

METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
Evaluate = Callable[[nn.Module], dict[str, Any]]


@runtime_checkable
class Source(Protocol):
    """What the loop needs of data: batches without end, and where it stands among them."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


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
        batches: Source,
        config: TrainConfig,
        *,
        folder: str | Path | None = None,
        evaluate: Evaluate | None = None,
        show: bool = False,
    ):
        self.device = device_of(config)
        self.model, self.objective, self.batches = model.to(self.device), objective, batches
        self.config, self.evaluate, self.show = config, evaluate, show
        self.folder = None if folder is None else Path(folder)
        self.optimizer = _optimizer(model, config)
        self.step, self.loss, self.best, self.waited = 0, math.nan, None, 0
        self.scores: dict[str, Any] = {}
        self.stream: Iterator[dict[str, Tensor]] | None = None
        self.began = time.monotonic()

    def run(self) -> Outcome:
        """Train until the last step, until it gets no better, or until asked to stop."""
        self.began = time.monotonic()
        progress = Progress(self.config.steps) if self.show else None
        with interrupts() as asked, progress or nullcontext():
            reason = "finished"
            while self.step < self.config.steps:
                if self._has_waited():
                    reason = "no better for a while"
                    self.save()
                    break
                self._advance(progress)
                if asked.signal is not None:
                    self.save()
                    return Outcome(self.step, "interrupted", self.scores, asked.signal)
            self._average(progress)
        return Outcome(self.step, reason, self.scores)

    def resume(self) -> list[str]:
        """Go back to the last good checkpoint; what is wrong with newer ones comes back."""
        if self.folder is None:
            raise ConfigError("folder: needs one to resume from, got none")
        found, wrong = last_good(self.folder / CHECKPOINTS)
        if found is None:
            if wrong:
                raise FileError(
                    f"{self.folder}: needs one whole checkpoint, got {'; '.join(wrong)}"
                )
            self._forget_after(0)
            return []
        fill(self.model, found.model, str(self.folder))
        _fill_optimizer(self.optimizer, found.optimizer)
        state = found.state
        self.step, self.best, self.waited = found.step, state["best"], state["waited"]
        self.scores = state["scores"]
        self.batches.restore(state["data"])
        self.stream = None
        _set_luck(state["luck"], self.device)
        self._forget_after(found.step)
        return wrong

    def save(self, before: tuple[dict, dict] | None = None) -> None:
        """Write a checkpoint; `before` is the data's place and the luck to go on from instead."""
        if self.folder is None:
            return
        data, luck = before or (self.batches.state(), _luck(self.device))
        state = {"data": data, "luck": luck, "best": self.best, "waited": self.waited}
        state["scores"] = self.scores
        optimizer = _optimizer_tensors(self.optimizer)
        checkpoint = Checkpoint(self.step, weights_of(self.model), optimizer, state)
        save_checkpoint(checkpoint, self.folder / CHECKPOINTS, keep=self.config.keep)

    def _advance(self, progress: Progress | None) -> None:
        """One update, and what is due after it."""
        config = self.config
        norm, count = self._update()
        rate = self.optimizer.param_groups[0]["lr"]
        last = self.step == config.steps
        if progress is not None:
            progress.update(self.step, self.loss, count, rate)
        if self.step % config.log_every == 0 or last:
            self._log({"loss": self.loss, "lr": rate, "norm": norm, "tokens": count})
        if self.evaluate is not None and (self.step % config.evaluate_every == 0 or last):
            self._score(progress)
        if self.step % config.save_every == 0 or last:
            self.save()

    def _update(self) -> tuple[float, int]:
        """One step of the optimizer over some batches; the norm of its gradient and its size."""
        before = self.batches.state(), _luck(self.device)
        self.stream = iter(self.batches) if self.stream is None else self.stream
        batches = [_moved(next(self.stream), self.device) for _ in range(self.config.accumulate)]
        counts = [int(self.objective.size(batch)) for batch in batches]
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for batch in batches:
            with self._autocast():
                total = self.objective.total(self.model, batch, self.config.smoothing)
            loss = total / max(1, sum(counts))
            loss.backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.loss = float(torch.stack(losses).sum())
        if not (math.isfinite(self.loss) and math.isfinite(float(norm))):
            self._stop_at_nan(before, float(norm), [float(x) for x in losses])
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * self._rate()
        self.optimizer.step()
        return float(norm), sum(counts)

    def _rate(self) -> float:
        c = self.config
        return rate_at(
            self.step, schedule=c.schedule, warmup=c.warmup, steps=c.steps, floor=c.floor
        )

    def _autocast(self) -> Any:
        half = self.device.type == "cuda" and self.config.precision != "float32"
        return torch.autocast("cuda", torch.bfloat16) if half else nullcontext()

    def _stop_at_nan(self, before: tuple[dict, dict], norm: float, losses: list[float]) -> None:
        """Nothing was learnt from the bad batch yet, so the weights are still good: keep them."""
        whole = all(bool(x.isfinite().all()) for x in self.model.buffers() if x.is_floating_point())
        if whole:
            self.save(before)
        bad = next((n for n, x in enumerate(losses) if not math.isfinite(x)), 0)
        kept = f"the state before it is in {self.folder}" if self.folder else "nothing was changed"
        raise TrainError(
            f"loss: needs a finite number, got {self.loss} (gradient norm {norm}) in update "
            f"{self.step + 1}, its batch {bad + 1} from data position {before[0]}; {kept}; "
            f"try a lower lr, a longer warmup, or a look at that batch"
        )

    def _score(self, progress: Progress | None) -> None:
        assert self.evaluate is not None
        self.scores = scores = scored(self.model, self.evaluate)
        self._log({f"valid_{name}": value for name, value in scores.items()})
        if self.config.watch not in scores:
            raise ConfigError(
                f"watch: needs one of {', '.join(scores)}, got {self.config.watch!r}; try loss"
            )
        if self.config.better(scores[self.config.watch], self.best):
            self.best, self.waited = scores[self.config.watch], 0
        else:
            self.waited += 1
        if progress is not None:
            progress.say(f"step {self.step}  valid: {told(scores)}")

    def _has_waited(self) -> bool:
        return self.config.patience is not None and self.waited >= self.config.patience

    def _average(self, progress: Progress | None) -> None:
        """The mean of the last checkpoints becomes the model, and is scored."""
        if self.config.average < 2 or self.folder is None:
            return
        places = checkpoints(self.folder / CHECKPOINTS)[-self.config.average :]
        fill(self.model, average(places))
        if self.evaluate is not None:
            self.scores = scored(self.model, self.evaluate)
            if progress is not None:
                progress.say(f"mean of the last {len(places)} checkpoints: {told(self.scores)}")

    def _log(self, values: dict[str, Any]) -> None:
        if self.folder is None:
            return
        line = {"step": self.step, **values, "seconds": round(time.monotonic() - self.began, 2)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / METRICS, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
        except OSError as error:
            raise FileError(
                f"{self.folder / METRICS}: cannot be written, {error.strerror or error}"
            ) from error

    def _forget_after(self, step: int) -> None:
        """The lines of updates that will be made again, and half a line, go from the metrics."""
        assert self.folder is not None
        lines = [line for line in read_metrics(self.folder) if line["step"] <= step]
        if (self.folder / METRICS).exists():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            write_text(self.folder / METRICS, text)


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last one that a crash cut in two is left out.

    >>> read_metrics("nowhere")
    []
    """
    file = Path(folder) / METRICS
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def scored(model: nn.Module, evaluate: Evaluate) -> dict[str, Any]:
    """An evaluation that leaves no trace: in evaluation mode, without gradients or spent luck."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            return evaluate(model)
    finally:
        model.train(was)


def told(scores: dict[str, Any]) -> str:
    """Scores in a line.

    >>> told({"loss": 0.25, "exact": 0.5, "signature": "x"})
    'loss 0.2500, exact 0.5000'
    """
    return ", ".join(f"{k} {v:.4f}" for k, v in scores.items() if isinstance(v, int | float))


def device_of(config: TrainConfig) -> torch.device:
    """Where to train; bf16 is refused on a CPU, where it is a hundred times slower.

    >>> device_of(TrainConfig(steps=1, device="cpu"))
    device(type='cpu')
    """
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise ConfigError("device: needs a CUDA device for cuda, got none here; try cpu")
    device = torch.device("cuda" if there and config.device != "cpu" else "cpu")
    if config.precision == "bf16" and device.type == "cpu":
        raise ConfigError("precision: needs a CUDA device for bf16, got cpu; try float32")
    return device


def _optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; only matrices decay, as a norm's scale or a bias has no reason to be small."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{n}.{name}": x.detach().cpu().clone().contiguous()
        for n, tensors in state.items()
        for name, x in tensors.items()
    }


def _fill_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, x in tensors.items():
        n, _, name = key.partition(".")
        state.setdefault(int(n), {})[name] = x
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _luck(device: torch.device) -> dict[str, str]:
    """The state of the random numbers, as JSON can hold it."""
    luck = {"cpu": torch.get_rng_state().numpy().tobytes().hex()}
    if device.type == "cuda":
        luck["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return luck


def _set_luck(luck: dict[str, str], device: torch.device) -> None:
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(luck["cpu"])), dtype=torch.uint8))
    if device.type == "cuda" and "cuda" in luck:
        state = torch.tensor(list(bytes.fromhex(luck["cuda"])), dtype=torch.uint8)
        torch.cuda.set_rng_state(state, device)


def _moved(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: x.to(device, non_blocking=True) for name, x in batch.items()}
