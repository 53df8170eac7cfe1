"""Metrics of a run: metrics.jsonl, one JSON object per line, and TensorBoard."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, FileError
from regard.files import parse_json, write_text

METRICS_FILE = "metrics.jsonl"


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Append one line to a run's metrics.jsonl."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / METRICS_FILE, "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
    except OSError as error:
        file = folder / METRICS_FILE
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error


def truncate_metrics(folder: Path, step: int) -> None:
    """Drop the lines after update `step`, which a resumed run writes again, and invalid lines."""
    lines = [line for line in read_metrics(folder) if line["step"] <= step]
    if (folder / METRICS_FILE).exists():
        write_text(folder / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines))


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; invalid ones, such as one cut by a crash, are skipped.

    >>> read_metrics("nowhere")
    []
    """
    file = Path(folder) / METRICS_FILE
    try:
        texts = file.read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FileError(f"{file}: cannot be read, {error.strerror or error}") from error
    lines = []
    for text in texts:
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and all(_is_number(line.get(n)) for n in ("step", "seconds")):
            lines.append(line)
    return lines


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


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
