"""Counts of loaded and skipped examples of a corpus, with file, line and reason."""

from collections import Counter
from pathlib import Path
from typing import Literal

from regard.errors import FileError

OnError = Literal["skip", "raise"]
MAX_LOCATIONS = 5  # per reason


class LoadReport:
    """Number of loaded and skipped examples, with the first locations per reason.

    >>> report = LoadReport()
    >>> report.loaded += 2
    >>> report.skip("corpus.tsv", 3, "empty side")
    >>> print(report)
    loaded 2, skipped 1
      1 × empty side: corpus.tsv:3
    """

    def __init__(self, on_error: OnError = "skip"):
        self.on_error: OnError = on_error
        self.clear()

    def clear(self) -> None:
        """Reset all counts, before the same files are read again."""
        self.loaded = 0
        self.reasons: Counter[str] = Counter()
        self.locations: dict[str, list[str]] = {}

    @property
    def skipped(self) -> int:
        """Number of skipped examples."""
        return self.reasons.total()

    def skip(self, path: str | Path, line: int | None, reason: str) -> None:
        """Count a skipped example; raises with `on_error="raise"`."""
        location = f"{path}:{line}" if line else f"{path}"
        if self.on_error == "raise":
            raise FileError(f"{location}: {reason}; try on_error='skip' to count it and go on")
        self.reasons[reason] += 1
        locations = self.locations.setdefault(reason, [])
        if len(locations) < MAX_LOCATIONS:  # a corpus may be bad in a million places
            locations.append(location)

    @property
    def summary(self) -> str:
        """The reasons in one line, each with its first location, for an error message."""
        return ", ".join(
            f"{f'{n} × ' * (n > 1)}{reason} ({self.locations[reason][0]})"
            for reason, n in self.reasons.most_common()
        )

    def __str__(self) -> str:
        lines = [f"loaded {self.loaded}, skipped {self.skipped}"]
        for reason, count in self.reasons.most_common():
            rest = ", …" if count > len(self.locations[reason]) else ""
            lines.append(f"  {count} × {reason}: {', '.join(self.locations[reason])}{rest}")
        return "\n".join(lines)
