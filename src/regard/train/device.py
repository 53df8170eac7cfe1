"""The device of a training run."""

import torch

from regard.errors import ConfigError
from regard.train.config import TrainConfig
from regard.train.distributed.ranks import Ranks


def select_device(config: TrainConfig, ranks: Ranks | None = None) -> torch.device:
    """The device of a config; bf16 and fp16 raise on a CPU, where they are slow."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: needs a CUDA device for cuda, got none here; try cpu")
    if config.device != "cpu" and torch.cuda.is_available():
        # without ranks: the device that `init_distributed` has set
        return torch.device("cuda", ranks.local_rank if ranks else torch.cuda.current_device())
    if config.precision in ("bf16", "fp16"):
        raise ConfigError(
            f"precision: needs a CUDA device for {config.precision}, got cpu; try float32"
        )
    return torch.device("cpu")
