"""Classes of own data: their names, found in the data and kept with the run, and odd counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from regard.data import Split
from regard.data.split import SPLITS
from regard.errors import ConfigError, suggestion
from regard.train.metrics import Tally

Classes = list[tuple[str, float]]  # (name, probability), most probable first
ClassCounts = Mapping[Split, Counter[str]]  # examples per class of each split


def fit_names(names: tuple[str, ...], counts: ClassCounts, hint: str) -> tuple[str, ...]:
    """The names of the classes: those given, which have to cover the data, or all labels, sorted.

    Args:
        names: of the classes; () takes them from the data.
        counts: examples per class of each split.
        hint: for the message about a split without examples.

    >>> counts = {"train": Counter(b=2, a=1), "valid": Counter("a"), "test": Counter("c")}
    >>> fit_names((), counts, "")
    ('a', 'b', 'c')
    >>> fit_names(("a", "b"), counts, "")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: names: needs every label of the data, got 'c' 1 × in test
    """
    for split, labels in counts.items():
        if not labels:
            total = sum(map(Counter.total, counts.values()))
            raise ConfigError(f"{split}: needs examples, got none of {total}; try {hint}")
        for label in sorted(set(labels) - set(names or labels)):
            raise ConfigError(
                f"names: needs every label of the data, got {label!r} {labels[label]} × in {split}"
                f"{suggestion(label, names)}"
            )
    classes = names or tuple(sorted(set().union(*counts.values())))
    if len(classes) < 2:
        raise ConfigError(f"names: needs two classes or more, got {' '.join(classes)} alone")
    return classes


def format_classes(classes: Classes) -> str:
    """Classes with their probabilities as one line.

    >>> format_classes([("cat", 0.75), ("dog", 0.25)])
    'cat 0.7500\\tdog 0.2500'
    """
    return "\t".join(f"{name} {probability:.4f}" for name, probability in classes)


def class_warnings(names: tuple[str, ...], counts: ClassCounts) -> list[str]:
    """One line for each class that the train split has no example of, or that has one in all.

    >>> counts = {"train": Counter(a=5), "valid": Counter(a=1), "test": Counter(a=1, b=1)}
    >>> class_warnings(("a", "b"), counts)
    ['class b: none in train, so it cannot be learned; valid 0, test 1']
    """
    lines = []
    for name in names:
        train, *others = (counts[split][name] for split in SPLITS)
        if not train:
            held_out = f"valid {others[0]}, test {others[1]}"
            lines.append(f"class {name}: none in train, so it cannot be learned; {held_out}")
        elif train + sum(others) == 1:
            lines.append(f"class {name}: one example, in train, so it is never evaluated")
    return lines


def class_tally(answers: Sequence[str], references: Sequence[str]) -> Tally:
    """Accuracy, and the mean of the F1 of all classes that occur (macro average).

    F1 of a class = 2 · correct / (predicted + in the reference)

    >>> class_tally(["a", "a", "b"], ["a", "b", "b"]).scores()  # 2/3 for each class
    {'accuracy': 0.6666666666666666, 'macro_f1': 0.6666666666666666}
    """
    names = sorted({*answers, *references})
    numbers = {name: n for n, name in enumerate(names)}
    rows = torch.zeros(len(answers), 2, len(names))  # correct, and predicted + in the reference
    for row, answer, reference in zip(rows, answers, references, strict=True):
        row[0, numbers[answer]] += answer == reference
        row[1, numbers[answer]] += 1
        row[1, numbers[reference]] += 1

    def score(sums: list[float]) -> dict[str, float]:
        correct, counts = sums[: len(names)], sums[len(names) :]
        pairs = zip(correct, counts, strict=True)
        f1 = [2 * right / count for right, count in pairs if count]
        return {"accuracy": 2 * sum(correct) / sum(counts), "macro_f1": sum(f1) / len(f1)}

    return Tally(rows.flatten(1), score)


def file_stamp(path: str | Path) -> int:
    """A number that changes with a file, or with a file in a folder: the key of a cache."""
    root = Path(path)
    if not path or not root.exists():
        return 0
    files = (file for file in sorted([root, *root.rglob("*")]) if file.exists())
    stats = [(str(file), file.stat()) for file in files]
    return hash(tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats))
