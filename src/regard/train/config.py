"""What can be chosen about a training, checked on the spot."""

import math
from dataclasses import dataclass
from typing import Literal

from regard.errors import ConfigError
from regard.models.config import check_choices, check_positive
from regard.train.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained: how long, how fast, and how often it is scored and saved.

    `tokens` fill a batch, `accumulate` batches make an update. `clip` bounds the norm of the
    gradient. `patience` evaluations without a better `watch` end the training (None: never);
    loss is better when low, everything else when high. The last `keep` checkpoints stay, and the
    mean of the last `average_checkpoints` becomes the model. `compile` is torch.compile; auto is where it pays.
    `parallel` is how several ranks share the work; auto is ddp when there are several.
    `agree` makes two passes of each batch, with dropout of their own, say the same (R-Drop, Liang
    et al. 2021): loss = ½ (L₁ + L₂) + agree · ½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)); their α is 2 · agree.

    >>> TrainConfig(steps=100, batch_tokens=512).schedule
    'cosine'
    """

    steps: int
    batch_tokens: int = 4096
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
    monitor: str = "loss"
    patience: int | None = None
    log_every: int = 10
    evaluate_every: int = 500
    save_every: int = 500
    keep_last: int = 3
    average_last: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(
            self, "steps", "batch_tokens", "accumulate", "patience", "keep_last", "average_last"
        )
        check_positive(self, "log_every", "evaluate_every", "save_every")
        for name in ("lr", "max_grad_norm", "eps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: needs more than 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "min_lr_fraction", "weight_decay", *("betas",)):
            values = getattr(self, name)
            if not all(0 <= x < 1 for x in (values if name == "betas" else (values,))):
                raise ConfigError(f"{name}: needs at least 0 and less than 1, got {values}")
        for name in ("warmup", "rdrop"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: needs 0 or more, got {getattr(self, name)}")
        if self.average_last > self.keep_last:
            raise ConfigError(
                f"average: needs at most keep={self.keep_last} checkpoints, got {self.average_last}; "
                f"try keep={self.average_last}"
            )

    def is_better(self, new: float, old: float | None) -> bool:
        """Whether a score of the watched kind is better than the best so far.

        >>> TrainConfig(steps=1).is_better(0.2, 0.3), TrainConfig(steps=1, monitor="bleu").is_better(1, 2)
        (True, False)
        """
        return old is None or (new < old if self.monitor == "loss" else new > old)
