"""TensorBoard logging of a run's metrics, beside metrics.jsonl."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, FileError

TENSORBOARD_FOLDER = "tensorboard"

Logger = Callable[[dict[str, Any]], None]


def tensorboard_logger(folder: str | Path) -> Logger:
    """A logger that writes the numbers of each line of metrics as TensorBoard scalars."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "tensorboard: needs the package of that name, got none; "
            "try pip install 'regard[tensorboard]'"
        ) from error
    path = Path(folder) / TENSORBOARD_FOLDER
    try:
        writer = SummaryWriter(str(path))
    except OSError as error:
        raise FileError(f"{path}: cannot be written, {error.strerror or error}") from error

    def write(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                tag = "valid/" + name.removeprefix("valid_") if name.startswith("valid_") else name
                writer.add_scalar(tag, value, line["step"])
        writer.flush()

    return write
