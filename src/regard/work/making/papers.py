"""The answers of a class: for each paper the first wrong step, in one table."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import FileError, RegardError
from regard.work.check import Finding, check, first_wrong
from regard.work.problem import read_toml
from regard.work.solution import Solution


class Paper(NamedTuple):
    """One paper: how many of its values are right, its first wrong step, or why it was not read.

    >>> Paper("ada", 3, 3, None, "").is_right
    True
    """

    name: str
    right: int
    given: int
    wrong: Finding | None
    trouble: str

    @property
    def is_right(self) -> bool:
        """Whether every value is right that was given."""
        return not self.trouble and self.wrong is None


def papers(solution: Solution, places: Sequence[str | Path]) -> list[Paper]:
    """Every paper among these files and folders, checked; one that cannot be read says why.

    >>> from regard.work import attention
    >>> papers(attention({"X": [[1]]}), ["nobody.toml"])[0].trouble
    'needs to be a TOML file, got nothing there'
    """
    files: list[Path] = []
    for place in map(Path, places):
        found = sorted(place.glob("*.toml")) if place.is_dir() else [place]
        if not found:
            raise FileError(f"{place}: needs to hold TOML files, got none")
        files += found
    return [_paper(solution, file) for file in files]


def _paper(solution: Solution, file: Path) -> Paper:
    try:
        findings = check(solution, read_toml(file))
    except RegardError as error:  # one paper that cannot be read does not stop the others
        return Paper(file.stem, 0, 0, None, str(error).removeprefix(f"{file}: "))
    right = sum(found.verdict == "right" for found in findings)
    return Paper(file.stem, right, len(findings), first_wrong(findings), "")


def papers_as_text(found: Sequence[Paper]) -> str:
    """The table, and under it which steps went wrong first and how often.

    >>> print(papers_as_text([Paper("ada", 3, 3, None, "")]))
    ada  3 of 3  all right
    1 of 1 all right
    """
    wide = max(len(paper.name) for paper in found)
    lines = [
        f"{paper.name:<{wide}}  {paper.right} of {paper.given}  {_said(paper)}" for paper in found
    ]
    lines.append(f"{sum(paper.is_right for paper in found)} of {len(found)} all right")
    often = Counter(paper.wrong.name for paper in found if paper.wrong is not None)
    if often:
        told = ", ".join(f"{name} ({count})" for name, count in often.most_common())
        lines.append(f"wrong first: {told}")
    return "\n".join(lines)


def _said(paper: Paper) -> str:
    if paper.trouble:
        return f"not read: {paper.trouble}"
    if paper.wrong is None:
        return "all right"
    why = f", likely: {paper.wrong.why}" if paper.wrong.why else ""
    return f"{paper.wrong.name} is wrong{why}"
