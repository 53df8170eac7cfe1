"""A run's metrics for TensorBoard, beside metrics.jsonl."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, FileError

TENSORBOARD_FOLDER = "tensorboard"

Logger = Callable[[dict[str, Any]], None]


def tensorboard_logger(folder: str | Path) -> Logger:
    """What takes each line of metrics and writes its numbers where TensorBoard reads them.

    >>> import tempfile
    >>> try:
    ...     tensorboard_logger(tempfile.mkdtemp())({"step": 1, "loss": 0.5})
    ... except ConfigError as error:  # an extra: it may not be installed
    ...     assert str(error).startswith("tensorboard: needs the package")
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "tensorboard: needs the package of that name, got none; "
            "try pip install 'regard[tensorboard]'"
        ) from error
    try:
        writer = SummaryWriter(str(Path(folder) / TENSORBOARD_FOLDER))
    except OSError as error:
        place = Path(folder) / TENSORBOARD_FOLDER
        raise FileError(f"{place}: cannot be written, {error.strerror or error}") from error

    def write(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                part = "valid/" + name.removeprefix("valid_") if name.startswith("valid_") else name
                writer.add_scalar(part, value, line["step"])
        writer.flush()

    return write
