"""What was left out of a corpus, where and why: nothing is lost in silence."""

from collections import Counter
from pathlib import Path
from typing import Literal

from regard.errors import FileError

Bad = Literal["skip", "fail"]


class Report:
    """Counts of what was read and of what was left out, with the first places of each reason.

    >>> report = Report()
    >>> report.kept += 2
    >>> report.leave_out("corpus.tsv", 3, "an empty side")
    >>> print(report)
    kept 2, left out 1
      1 × an empty side: corpus.tsv:3
    """

    def __init__(self, bad: Bad = "skip", shown: int = 5):
        self.bad: Bad = bad
        self.shown = shown
        self.clear()

    def clear(self) -> None:
        """Forget everything, before the same files are read again."""
        self.kept = 0
        self.reasons: Counter[str] = Counter()
        self.places: dict[str, list[str]] = {}

    @property
    def left_out(self) -> int:
        """How many were left out, for any reason."""
        return self.reasons.total()

    def leave_out(self, file: str | Path, line: int | None, reason: str) -> None:
        """Count one that is left out; an error if the caller asked for `bad="fail"`."""
        place = f"{file}:{line}" if line else f"{file}"
        if self.bad == "fail":
            raise FileError(f"{place}: {reason}; try bad='skip' to leave it out and count it")
        self.reasons[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < self.shown:  # a corpus may be bad in a million places
            places.append(place)

    def __str__(self) -> str:
        lines = [f"kept {self.kept}, left out {self.left_out}"]
        for reason, count in self.reasons.most_common():
            more = ", …" if count > len(self.places[reason]) else ""
            lines.append(f"  {count} × {reason}: {', '.join(self.places[reason])}{more}")
        return "\n".join(lines)
