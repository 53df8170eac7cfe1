"""What was left out of a corpus, where and why: nothing is lost in silence."""

from collections import Counter
from pathlib import Path
from typing import Literal

from regard.errors import FileError

OnError = Literal["skip", "raise"]


class LoadReport:
    """Counts of what was read and of what was left out, with the first places of each reason.

    >>> report = LoadReport()
    >>> report.loaded += 2
    >>> report.skip("corpus.tsv", 3, "an empty side")
    >>> print(report)
    loaded 2, skipped 1
      1 × an empty side: corpus.tsv:3
    """

    def __init__(self, on_error: OnError = "skip", max_locations: int = 5):
        self.on_error: OnError = on_error
        self.max_locations = max_locations
        self.clear()

    def clear(self) -> None:
        """Forget everything, before the same files are read again."""
        self.loaded = 0
        self.reasons: Counter[str] = Counter()
        self.locations: dict[str, list[str]] = {}

    @property
    def skipped(self) -> int:
        """How many were left out, for any reason."""
        return self.reasons.total()

    def skip(self, path: str | Path, line: int | None, reason: str) -> None:
        """Count one that is left out; an error if the caller asked for `on_error="raise"`."""
        place = f"{path}:{line}" if line else f"{path}"
        if self.on_error == "raise":
            raise FileError(f"{place}: {reason}; try on_error='skip' to count it and go on")
        self.reasons[reason] += 1
        places = self.locations.setdefault(reason, [])
        if len(places) < self.max_locations:  # a corpus may be bad in a million places
            places.append(place)

    def __str__(self) -> str:
        lines = [f"loaded {self.loaded}, skipped {self.skipped}"]
        for reason, count in self.reasons.most_common():
            more = ", …" if count > len(self.locations[reason]) else ""
            lines.append(f"  {count} × {reason}: {', '.join(self.locations[reason])}{more}")
        return "\n".join(lines)
