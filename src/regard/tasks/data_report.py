"""What the data of a task holds: counts, lengths, classes, skipped lines, copies and overlap."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data import LoadReport, Split, Tokenizer
from regard.data.source import Reservoir
from regard.data.split import SPLITS
from regard.data.text.parallel_formats import MISSING_LINE
from regard.errors import FileError
from regard.files import DETECTION_BYTES, detect_encoding, open_binary
from regard.tasks.base import Task

COUNTED = ("label", "tags", "rate", "size", "mode")  # fields whose values are counted
IGNORED = ("name", "language")  # neither measured nor compared
SAMPLE_SIZE = 1000  # train examples kept for token lengths and to be shown
MAX_TOKENIZED = 300_000  # examples up to which a tokenizer is trained for the report
MAX_VALUES = 12  # of a counted field that are printed
MAX_FILES = 3  # that are described
MIN_PER_CLASS = 5


class Distribution(NamedTuple):
    """Median, 95th percentile, maximum and sum of a length.

    >>> Distribution.of(Counter([1, 2, 2, 9]))
    Distribution(median=2, p95=9, max=9, total=14)
    """

    median: float
    p95: float
    max: float
    total: float

    @classmethod
    def of(cls, counts: Mapping[float, int]) -> "Distribution":
        """The distribution of counted values."""
        values, numbers = np.array(sorted(counts)), [counts[value] for value in sorted(counts)]
        ranks, size = np.cumsum(numbers), sum(numbers)
        median, p95 = (values[np.searchsorted(ranks, share * size)].item() for share in (0.5, 0.95))
        total = sum(value * count for value, count in counts.items())
        return cls(median, p95, values[-1].item(), total)

    def __str__(self) -> str:
        return f"median {self.median:,.10g}, 95% {self.p95:,.10g}, max {self.max:,.10g}"


@dataclass
class DataReport:
    """What the data of a task holds; `print` shows it.

    Args:
        files: name, size and encoding of the first files.
        sizes: examples per split.
        lengths: of each field per split, such as of texts in characters.
        units: of the lengths: characters, tokens of lists, or seconds.
        token_lengths: per text field, by the task's tokenizer, of a sample of the train split.
        counts: values of each counted field (classes, tags, rates, …) per split.
        skipped: lines that cannot be used, by reason.
        duplicates: train examples that are copies of others.
        conflicts: train inputs that come with several outputs.
        overlap: examples of valid and test whose input is in train too.
        untranslated: pairs whose sides are the same.
        samples: examples of the train split.
        names: of the classes that the recipe lists; () is those of the data.

    >>> print(rg.tasks.inspect_data(rg.tasks.recipe("stdlib").data).sizes["train"] > 300)
    True
    """

    files: list[str]
    sizes: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    lengths: dict[str, dict[Split, Distribution]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    token_lengths: dict[str, Distribution] = field(default_factory=dict)
    counts: dict[str, dict[Split, Counter]] = field(default_factory=dict)
    skipped: LoadReport = field(default_factory=LoadReport)
    duplicates: int = 0
    conflicts: int = 0
    overlap: dict[Split, int] = field(default_factory=dict)
    untranslated: int = 0
    samples: list[Any] = field(default_factory=list)
    names: Sequence[str] = ()

    @property
    def total(self) -> int:
        """Examples of all splits."""
        return sum(self.sizes.values())

    def length(self, name: str) -> Distribution:
        """The distribution of a field's length in the train split."""
        return self.lengths[name]["train"]

    def values(self, name: str) -> Counter:
        """The values of a counted field in all splits."""
        return sum(self.counts.get(name, {}).values(), Counter())

    def summary(self) -> str:
        """Files, counts, lengths and classes: what `regard new` prints."""
        lines = [", ".join(self.files), ", ".join(f"{s} {n:,}" for s, n in self.sizes.items())]
        for name, by_split in self.lengths.items():
            split, values = next(iter(by_split.items()))
            unit, tokens = self.units[name], self.token_lengths.get(name)
            also = f"; in tokens: {tokens}" if tokens else ""
            field_unit = name if name == unit else f"{name} in {unit}"
            lines.append(f"{split} {field_unit}: {values}, {values.total:,.0f} in all{also}")
        for name in self.counts:
            values = self.values(name)
            if name == "size" and len(values) > MAX_VALUES:
                ordered = sorted(values, key=lambda size: math.prod(map(int, size.split("x"))))
                lines.append(f"size: {ordered[0]} to {ordered[-1]}, {len(values):,} different")
                continue
            rest = f", … ({len(values):,} in all)" if len(values) > MAX_VALUES else ""
            shown = ", ".join(f"{value} {n:,}" for value, n in values.most_common(MAX_VALUES))
            lines.append(f"{name}: {shown}{rest}")
        if self.skipped.skipped:
            lines.append(str(self.skipped).replace("loaded", "used", 1))
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        """What may spoil a training or its scores, one line each."""
        train, lines = max(1, self.sizes["train"]), []
        for split in SPLITS:
            if not self.sizes[split]:
                lines.append(f"the {split} split is empty")
        if self.skipped.skipped > 0.05 * max(1, self.total):
            lines.append(f"skipped: {self.skipped.skipped:,}, more than 5%")
        for reason, count in self.skipped.reasons.items():
            if reason.startswith(MISSING_LINE):
                where = self.skipped.locations[reason][0]
                lines.append(
                    f"{reason}: {where} and {count - 1:,} more; if a line is missing before, all "
                    "after it are paired wrongly"
                )
        if self.duplicates:
            share = f"{self.duplicates / train:.1%}"
            lines.append(f"copies among the train examples: {self.duplicates:,} ({share})")
        if self.conflicts:
            lines.append(f"train inputs with several outputs: {self.conflicts:,}")
        for split, count in self.overlap.items():
            if count:
                matches = f"{count:,} ({count / self.sizes[split]:.1%})"
                lines.append(f"inputs of {split} in train too: {matches}, so scores are too good")
        if self.untranslated:
            lines.append(f"pairs with the same text on both sides: {self.untranslated:,}")
        for name in ("rate", "mode"):
            if len(values := self.values(name)) > 1:
                lines.append(f"{name}: {len(values)} different values, converted to one")
        for name in ("label", "tags"):
            lines += _class_warnings(name, self.counts.get(name, {}))
            if self.names and (others := [x for x in self.values(name) if x not in self.names]):
                lines.append(f"{name}: not in names: {_list(others)}")
        return lines

    def __str__(self) -> str:
        lines = [self.summary(), "", "examples of train:"]
        for example in self.samples[:3]:
            lines.append("- " + "\n  ".join(f"{key}: {x}" for key, x in _shown(example)))
        lines += ["", *(f"warning: {line}" for line in self.warnings())]
        return "\n".join(lines).rstrip()


def inspect_data(task: Task, *, tokenize: bool = False, seed: int = 0) -> DataReport:
    """Read all data of a task once and report what it holds; memory stays small.

    Args:
        task: with data files of its own.
        tokenize: also train the tokenizer and measure a sample in tokens.
        seed: of the tokenizer.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> _ = file.write_text("one\\teins\\ntwo\\tzwei\\nthree\\t\\n")
    >>> task = rg.tasks.PairsTask(folder=str(file.parent), train=(file.name,))
    >>> print(inspect_data(task).summary())
    pairs.tsv (25 bytes, UTF-8)
    train 2, valid 0, test 0
    train source in characters: median 3, 95% 3, max 3, 6 in all
    train target in characters: median 4, 95% 4, max 4, 8 in all
    used 2, skipped 1
      1 × an empty side: pairs.tsv:3
    """
    contents = task.contents()
    files = [describe_file(file) for file in contents.files[:MAX_FILES]]
    files += [f"and {len(contents.files) - MAX_FILES} more"] * (len(contents.files) > MAX_FILES)
    report = DataReport(files, skipped=contents.report, names=getattr(task, "names", ()))
    lengths = defaultdict[str, dict[Split, Counter]](lambda: {s: Counter() for s in SPLITS})
    counts = defaultdict[str, dict[Split, Counter]](lambda: {s: Counter() for s in SPLITS})
    # hashes: of inputs, of examples
    keys: dict[Split, tuple[array, array]] = {s: (array("q"), array("q")) for s in SPLITS}
    sample = Reservoir[Any](SAMPLE_SIZE)
    fields: list[tuple[int, str]] = []
    for split, example in contents.examples:
        if not fields:  # of all examples
            fields = [(n, x) for n, x in enumerate(example._fields) if x not in IGNORED]
            report.units = {name: _unit(name, example[n]) for n, name in fields}
        values = [example[n] for n, _ in fields]
        inputs, examples = keys[split]
        inputs.append(hash(example[0]))
        examples.append(hash(tuple(values)))
        if split == "train":
            sample.add(example)
        for (_, name), value in zip(fields, values, strict=True):
            if isinstance(value, str) and name not in COUNTED:
                lengths[name][split][len(value)] += 1
            elif name in COUNTED:
                counts[name][split].update(value if isinstance(value, tuple) else (value,))
            elif not isinstance(value, bytes):  # a fingerprint
                size = value if isinstance(value, int | float) else len(value)
                lengths[name][split][round(size, 1)] += 1
        report.untranslated += values[0] == values[-1] and len(values) == 2 == len(lengths)
    report.sizes = {split: len(inputs) for split, (inputs, _) in keys.items()}
    report.samples, report.counts = sample.items, dict(counts)
    for name, by_split in lengths.items():
        report.lengths[name] = {s: Distribution.of(x) for s, x in by_split.items() if x}
    report.skipped.loaded = report.total
    _compare(report, keys)
    if tokenize and report.sizes["train"] and report.total <= MAX_TOKENIZED:
        report.token_lengths = _measure_tokens(report.samples, task.tokenizer(seed))
    return report


def describe_file(file: Path) -> str:
    """Name, size and encoding of a file.

    >>> describe_file(Path("/dev/null"))
    'null (0 bytes, UTF-8)'
    """
    if file.is_dir():
        return f"{file.name}/"
    try:
        with open_binary(file) as opened:
            encoding = detect_encoding(opened.read(DETECTION_BYTES)).upper().removesuffix("-SIG")
        size = file.stat().st_size
    except (FileError, OSError):  # one of many files: counted as skipped when it is read
        return f"{file.name} (unreadable)"
    for unit in ("bytes", "kB", "MB"):
        if size < 1000 or unit == "MB":
            break
        size /= 1000
    return f"{file.name} ({size:,.{0 if unit == 'bytes' else 1}f} {unit}, {encoding})"


def _unit(name: str, value: Any) -> str:
    if isinstance(value, str):
        return "characters"
    return name if isinstance(value, int | float) else "tokens"


def _compare(report: DataReport, keys: Mapping[Split, tuple[array, array]]) -> None:
    inputs, examples = (np.asarray(x) for x in keys["train"])  # views, sorted in place
    distinct = _sort_distinct(examples)
    report.duplicates = len(examples) - distinct
    report.conflicts = distinct - _sort_distinct(inputs)
    for split in SPLITS[1:]:
        held_out = np.asarray(keys[split][0])
        matches = np.searchsorted(inputs, held_out, "right") - np.searchsorted(inputs, held_out)
        report.overlap[split] = int(np.count_nonzero(matches))


def _sort_distinct(hashes: np.ndarray) -> int:
    """Sort them and return how many differ."""
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] != hashes[:-1])) + min(1, len(hashes))


def _measure_tokens(samples: Sequence[Any], tokenizer: Tokenizer | None) -> dict[str, Distribution]:
    if tokenizer is None:
        return {}
    lengths: dict[str, Counter] = {}
    for example in samples:
        for name, value in example._asdict().items():
            if isinstance(value, str) and name not in (*COUNTED, *IGNORED):
                lengths.setdefault(name, Counter())[len(tokenizer.encode_input(value))] += 1
    return {name: Distribution.of(counts) for name, counts in lengths.items()}


def _class_warnings(name: str, counts: Mapping[Split, Counter]) -> Iterable[str]:
    if not counts:
        return
    train = counts["train"]
    if len(train) == 1:
        yield f"{name}: only one value in train, {next(iter(train))!r}"
    rare = [value for value, count in train.items() if count < MIN_PER_CLASS]
    if rare:
        yield f"{name}: fewer than {MIN_PER_CLASS} train examples of {_list(rare)}"
    for split in SPLITS[1:]:
        if unseen := [value for value in counts[split] if value not in train]:
            yield f"{name}: {split} has {_list(unseen)}, which train does not have"


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values[:5])) + (f" and {len(values) - 5} more" * (len(values) > 5))


def _shown(example: Any) -> Iterable[tuple[str, str]]:
    for name, value in example._asdict().items():
        if name != "language" and not isinstance(value, bytes):
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            text = text.replace("\n", "\\n").replace("\t", "\\t")
            yield name, text if len(text) <= 100 else f"{text[:99]}…"
