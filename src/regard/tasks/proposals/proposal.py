"""A proposed recipe with a reason for each decision, and the choice of sizes they share."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import models
from regard.data import Split
from regard.errors import FileError, counted
from regard.tasks.base import Recipe, Task
from regard.tasks.data_report import MAX_TOKENIZED, DataReport, inspect_data
from regard.tasks.recipe_file import recipe_to_toml
from regard.train.config import TrainConfig
from regard.train.distributed import select_device
from regard.train.losses import objective

MIN_STEPS, MAX_STEPS = 200, 3000
MEASURED_STEPS = 3  # after one that warms up


@dataclass(frozen=True)
class Proposal:
    """A recipe for the user's data, what the data holds, and the reason for each decision.

    `comments` are by dotted name, such as "data.vocab_size"; `notes` are lines for the head.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "en-de.tsv"
    >>> _ = file.write_text("".join(f"{n} days\\t{n} Tage\\n" for n in range(99)))
    >>> from regard.tasks.proposals.kinds import propose
    >>> propose("pairs", [file]).recipe.data.target_language
    'de'
    """

    recipe: Recipe
    comments: dict[str, str]
    report: DataReport
    notes: tuple[str, ...] = ()

    def to_toml(self, folder: str | Path, *, comment: str = "") -> str:
        """The recipe as TOML for a file in `folder`: paths below it are written relative to it."""
        data: Any = self.recipe.data
        paths = {name: _relative(getattr(data, name), Path(folder)) for name in data.paths}
        recipe = replace(self.recipe, data=replace(data, **paths))
        return recipe_to_toml(recipe, comment=comment, comments=self.comments)

    def measure_step(self) -> float | None:
        """Seconds per training step on this machine; None for data too large to try it on."""
        if self.report.total > MAX_TOKENIZED:
            return None
        data, train = self.recipe.data, self.recipe.train
        tokenizer, device = data.tokenizer(train.seed), select_device(train)
        model = models.build(data.resolve(self.recipe.model, tokenizer)).to(device)
        batches, loss, times = iter(data.batches(tokenizer, train)), objective(data.objective), []
        for _ in range(1 + MEASURED_STEPS):
            started = time.perf_counter()
            batch = {name: x.to(device) for name, x in next(batches).items()}
            loss.loss_sum(model, batch).backward()
            times.append(time.perf_counter() - started)
        return min(times[1:])  # the least disturbed by other work


def _relative(value: Any, folder: Path) -> Any:
    if isinstance(value, tuple):
        return tuple(_relative(item, folder) for item in value)
    path, base = os.path.realpath(value), os.path.realpath(folder)
    is_below = value and Path(path).is_relative_to(base)
    return os.path.relpath(path, base) if is_below else value and path


def inspect_or_raise(
    task: Task, what: str, paths: Sequence[Path], *, split: Split | None = "train"
) -> DataReport:
    """The report of a task's data; raises with the reasons if a split has none of it.

    Args:
        task: with files of data.
        what: its examples, for the message.
        paths: of the data, for the message.
        split: that the message is about if it is empty; None needs any example at all.
    """
    report, names = inspect_data(task), ", ".join(map(str, paths))
    if not (report.total if split is None else report.sizes[split]):
        got = report.skipped.summary or (f"{report.total} in all" if report.total else "none")
        hint = "; try iconv -t UTF-8" if "not UTF-8" in got else ""
        raise FileError(f"{names}: needs {what} to train on, got {got}{hint}")
    empty = [name for name, size in report.sizes.items() if not size]
    if empty and split is not None:
        raise FileError(
            f"{names}: needs {what} for {' and '.join(empty)}, got none of {report.total:,}; try "
            "more different ones, or files of their own"
        )
    return report


def choose_steps(
    epoch_steps: float, epochs: int, min_steps: int = MIN_STEPS, max_steps: int = MAX_STEPS
) -> tuple[int, str]:
    """Updates for so many epochs, within limits that take minutes, and the reason.

    >>> choose_steps(50, 20)
    (1000, '20 epochs')
    >>> choose_steps(1000, 20)
    (3000, '3.0 epochs: at most 3,000 steps, to take minutes on two cores')
    >>> choose_steps(10, 20, 1000, 2000)
    (1000, '100.0 epochs: at least 1000 steps')
    """
    planned = max(1, round(epoch_steps * epochs / 100)) * 100
    steps = min(max(planned, min_steps), max_steps)
    if steps == planned:
        return steps, counted(epochs, "epoch")
    epochs_done = steps / epoch_steps
    passes = f"{epochs_done:,.1f} epochs" if epochs_done >= 0.1 else f"{epochs_done:.1g} epochs"
    if steps == max_steps:
        return steps, f"{passes}: at most {max_steps:,} steps, to take minutes on two cores"
    return steps, f"{passes}: at least {min_steps} steps"


def make_proposal(
    name: str,
    data: Task,
    model: Any,
    report: DataReport,
    comments: dict[str, str],
    *,
    epoch_steps: float,
    epochs: int,
    min_steps: int = MIN_STEPS,
    max_steps: int = MAX_STEPS,
    monitor: str = "loss",
    **settings: Any,
) -> Proposal:
    """A proposal whose training all kinds share: a tenth of warmup, five evaluations."""
    steps, reason = choose_steps(max(1.0, epoch_steps), epochs, min_steps, max_steps)
    every, comments = max(1, steps // 5), comments | {"train.steps": reason}
    if monitor != "loss":
        comments["train.monitor"] = (
            "the best weights by it are kept; early stopping, once `patience` is set"
        )
    options = {"lr": 2e-3, "warmup": steps // 10, "weight_decay": 0.05} | settings
    train = TrainConfig(
        steps=steps, monitor=monitor, log_every=min(50, every), evaluate_every=every,
        save_every=every, **options,
    )  # fmt: skip
    return Proposal(Recipe(name=name, data=data, model=model, train=train), comments, report)


def choose_size(sizes: Iterable[tuple[Any, ...]], amount: float) -> tuple[Any, ...]:
    """The rest of the first row whose bound is above the amount of data."""
    return next(row[1:] for row in sizes if amount < row[0])


def one_path(paths: Sequence[Path], what: str) -> Path:
    """The only path of the data, which can be read."""
    if len(paths) != 1:
        raise FileError(f"data: needs {what}, got {len(paths)}")
    check_readable(paths[0])
    return paths[0]


ALIASES: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "dev", "validation", "devel"),
    "test": ("test", "testing"),
}


def list_files(path: str | Path) -> list[Path]:
    """The files of a folder without those below it and hidden ones; or the file itself."""
    root = Path(path)
    check_readable(root)
    if root.is_file():
        return [root]
    return sorted(f for f in root.iterdir() if f.is_file() and not f.name.startswith("."))


def check_readable(path: Path) -> None:
    """Raise `FileError` for a file or folder that is missing or cannot be read."""
    if not path.exists():
        raise FileError(f"{path}: needs to be a file or a folder, got no such file")
    try:
        if path.is_dir():
            os.scandir(path).close()
        else:
            path.open("rb").close()
    except OSError as error:
        raise FileError(f"{path}: cannot be read, {error.strerror or error}") from error


def split_of(file: Path) -> Split | None:
    """The split that a file name begins with: train, valid (val, dev, …) or test.

    >>> split_of(Path("dev.tsv")), split_of(Path("test_2016.en.gz")), split_of(Path("data.csv"))
    ('valid', 'test', None)
    """
    stem = file.name.lower().partition(".")[0]
    word = stem.replace("-", "_").partition("_")[0]
    return next((split for split, names in ALIASES.items() if word in names), None)


def find_splits(files: Sequence[Path], accepts: Callable[[Path], bool]) -> dict[Split, list[Path]]:
    """The files of each split by their names; one file, or the only ones, are all train.

    >>> find_splits([Path("train.csv"), Path("dev.csv"), Path("notes.md")], lambda f: f.suffix == ".csv")
    {'train': [PosixPath('train.csv')], 'valid': [PosixPath('dev.csv')]}
    """  # noqa: E501
    usable = [file for file in files if accepts(file)]
    splits: dict[Split, list[Path]] = {}
    for file in usable:
        if (split := split_of(file)) is not None:
            splits.setdefault(split, []).append(file)
    return splits if "train" in splits else {"train": usable} if usable else {}
