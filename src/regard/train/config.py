"""Training configuration, validated on construction, and the schedule of the learning rate."""

import math
from dataclasses import dataclass
from typing import Literal

from regard.errors import ConfigError
from regard.models.config import check_choices, check_positive

Schedule = Literal["inverse_sqrt", "cosine", "constant"]


def lr_factor(
    step: int,
    *,
    schedule: Schedule = "cosine",
    warmup: int,
    steps: int,
    min_lr_fraction: float = 0.0,
) -> float:
    """The learning rate of update `step`, as a fraction of the peak.

    step / warmup during the warmup; then 1, √(warmup / step), or
    m + (1 - m) (1 + cos(π (step - warmup) / (steps - warmup))) / 2 with m = min_lr_fraction

    Args:
        step: number of the update; the first is 1.
        schedule: shape of the decay.
        warmup: updates of linear warmup.
        steps: updates in all.
        min_lr_fraction: where the cosine ends.

    >>> [lr_factor(step, warmup=2, steps=6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    >>> lr_factor(16, schedule="inverse_sqrt", warmup=4, steps=100)
    0.5
    """
    if step < 1:
        raise ConfigError(f"step: needs 1 or more, the first update is 1, got {step}")
    if step < warmup:
        return step / warmup
    match schedule:
        case "constant":
            return 1.0
        case "inverse_sqrt":
            return math.sqrt(max(1, warmup) / step)
        case "cosine":
            done = min(1.0, (step - warmup) / max(1, steps - warmup))
            return min_lr_fraction + (1 - min_lr_fraction) * (1 + math.cos(math.pi * done)) / 2
        case other:
            raise ConfigError(f"schedule: needs inverse_sqrt, cosine or constant, got {other!r}")


MINIMISED = ("loss", "error", "perplexity", "bits_per_byte")  # ends of the names of metrics


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Hyperparameters of a training run.

    Args:
        steps: number of optimizer updates.
        batch_tokens: tokens per batch, for tasks over text; None is 4096.
        batch_size: examples per batch, for tasks over images and audio; None is 64.
        accumulate: batches per update (gradient accumulation).
        lr: peak learning rate of AdamW.
        schedule: decay of the learning rate after the warmup.
        warmup: updates of linear warmup.
        min_lr_fraction: where the cosine schedule ends, as a fraction of `lr`.
        betas, eps, weight_decay: of AdamW; only matrices decay.
        max_grad_norm: gradient clipping, by the norm over all parameters.
        label_smoothing: probability mass that the target spreads over all classes; with CTC each
            frame is drawn to the uniform distribution.
        rdrop: weight of R-Drop (Liang et al. 2021), two forward passes with different dropout:
            loss = ½ (L₁ + L₂) + rdrop · ½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)); the paper's α is 2 · rdrop.
        seed: of the initial weights, of dropout and of the order of the data.
        low_rank: rank of the updates of the linear layers within blocks, alone trained beside the
            head (LoRA); they are merged into the final weights. 0 trains the weights themselves.
        freeze: patterns of parameter names that are not trained, such as `encoder.*`.
        monitor: validation metric that decides what is best; names that end in loss, error,
            perplexity or bits_per_byte are minimised, others maximised.
        patience: evaluations without a better `monitor` before training stops; None never stops.
        log_every, evaluate_every, save_every: intervals in updates.
        keep_last: checkpoints to keep.
        final: the final weights: those of the best evaluation by `monitor`, or the last.
        average_last: above 1, the final weights are the mean of so many of the last checkpoints.
        device: where to train; auto is CUDA where available.
        precision: of autocast on a GPU; fp16 scales the loss; auto is bf16 there, float32 on a CPU.
        compile: torch.compile; auto is where it pays.
        parallel: how ranks share the work; auto is DDP with several ranks.

    >>> TrainConfig(steps=100, batch_tokens=512).schedule
    'cosine'
    """

    steps: int
    batch_tokens: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    lr: float = 1e-3
    schedule: Schedule = "cosine"
    warmup: int = 100
    min_lr_fraction: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    label_smoothing: float = 0.0
    rdrop: float = 0.0
    seed: int = 0
    low_rank: int = 0
    freeze: tuple[str, ...] = ()
    monitor: str = "loss"
    patience: int | None = None
    log_every: int = 10
    evaluate_every: int = 500
    save_every: int = 500
    keep_last: int = 3
    final: Literal["best", "last"] = "best"
    average_last: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "steps", "batch_tokens", "batch_size", "accumulate", "patience")
        check_positive(self, "log_every", "evaluate_every", "save_every")
        check_positive(self, "keep_last", "average_last")
        for name in ("lr", "max_grad_norm", "eps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: needs more than 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "min_lr_fraction", "weight_decay", "betas"):
            value = getattr(self, name)
            if not all(0 <= x < 1 for x in (value if name == "betas" else (value,))):
                raise ConfigError(f"{name}: needs at least 0 and less than 1, got {value}")
        for name in ("warmup", "rdrop", "low_rank"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: needs 0 or more, got {getattr(self, name)}")
        if self.average_last > self.keep_last:
            raise ConfigError(
                f"average_last: needs at most keep_last={self.keep_last} checkpoints, got "
                f"{self.average_last}; try keep_last={self.average_last}"
            )

    def warnings(self) -> list[str]:
        """What is odd about the settings, although they can be trained with.

        >>> TrainConfig(steps=50, warmup=200, lr=1e-3).warnings()[0].partition(",")[0]
        'warmup: needs at most steps=50 to reach lr=0.001'
        """
        if self.steps >= self.warmup:
            return []
        return [
            f"warmup: needs at most steps={self.steps} to reach lr={self.lr:g}, got {self.warmup}, "
            f"so that it ends at {self.lr * self.steps / self.warmup:.2g}; "
            f"try --set warmup={self.steps // 10} in a new run, or more steps"
        ]

    def lr_at(self, step: int) -> float:
        """The learning rate of update `step`, `lr` times `lr_factor`.

        >>> TrainConfig(steps=100, lr=0.5, warmup=10).lr_at(1)
        0.05
        """
        return self.lr * lr_factor(
            step, schedule=self.schedule, warmup=self.warmup, steps=self.steps,
            min_lr_fraction=self.min_lr_fraction,
        )  # fmt: skip

    def is_better(self, new: float, old: float | None) -> bool:
        """Whether a value of the monitored metric improves on the best so far; NaN never does.

        >>> accuracy = TrainConfig(steps=1, monitor="accuracy")
        >>> TrainConfig(steps=1).is_better(0.2, 0.3), accuracy.is_better(0.2, 0.3)
        (True, False)
        """
        if old is None or math.isnan(old):
            return not math.isnan(new)
        return new < old if self.monitor.endswith(MINIMISED) else new > old
