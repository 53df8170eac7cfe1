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
    """One paper: how many of the steps on it are right, its first wrong step, what is still open.

    `trouble` says why a paper could not be read.

    >>> Paper("ada", 3, 3, None, "").is_right
    True
    """

    name: str
    right: int
    given: int
    wrong: Finding | None
    trouble: str
    left_open: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether there is an answer, nothing of it is wrong, and nothing was left open."""
        return bool(self.given) and not self.is_wrong and not self.left_open

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong, or could not be read."""
        return bool(self.trouble) or self.wrong is not None


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
    left_open = tuple(found.name for found in findings if found.left_open)
    return Paper(file.stem, right, len(findings), first_wrong(findings), "", left_open)


def papers_as_text(found: Sequence[Paper]) -> str:
    """The table, and under it which steps went wrong first and how often.

    >>> print(papers_as_text([Paper("ada", 3, 3, None, "")]))
    ada  3 of 3  all right
    1 of 1 all right
    """
    wide = max(len(paper.name) for paper in found)
    lines = [f"{p.name:<{wide}}  {p.right} of {p.given}  {result_of(p)}" for p in found]
    return "\n".join([*lines, *summary_of(found)])


def summary_of(found: Sequence[Paper]) -> list[str]:
    """How many papers are all right, and which steps went wrong first.

    >>> summary_of([Paper("ada", 0, 0, None, "")])
    ['0 of 1 all right', 'not finished: ada']
    """
    lines = [f"{sum(paper.is_right for paper in found)} of {len(found)} all right"]
    often = Counter(paper.wrong.name for paper in found if paper.wrong is not None)
    if often:
        told = ", ".join(f"{name} ({count})" for name, count in often.most_common())
        lines.append(f"wrong first: {told}")
    if late := [p.name for p in found if not p.is_right and not p.is_wrong]:
        lines.append(f"not finished: {', '.join(late)}")
    return lines


def result_of(paper: Paper) -> str:
    """One paper in a few words.

    >>> result_of(Paper("ada", 0, 0, None, ""))
    'nothing was answered'
    """
    if paper.trouble:
        return f"not read: {paper.trouble}"
    if len(paper.left_open) == paper.given and not paper.right and paper.wrong is None:
        return "nothing was answered"
    still = f"; still open: {', '.join(paper.left_open)}" if paper.left_open else ""
    if paper.wrong is None:
        return f"what was given is right{still}" if still else "all right"
    why = f", likely: {paper.wrong.why}" if paper.wrong.why else ""
    return f"{paper.wrong.name} is wrong{why}{still}"
