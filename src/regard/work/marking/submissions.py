"""The answers of a class: for each paper the first wrong step, in one table."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import FileError, RegardError
from regard.work.marking.findings import Finding, check_answers, first_wrong
from regard.work.problem import read_toml
from regard.work.solution import Solution


class Submission(NamedTuple):
    """One paper: how many of the steps on it are right, its first wrong step, what is still open.

    `trouble` says why a paper could not be read.

    >>> Submission("ada", 3, 3, None, "").is_correct
    True
    """

    name: str
    correct: int
    answers: int
    first_wrong: Finding | None
    read_error: str
    blanks: tuple[str, ...] = ()

    @property
    def is_correct(self) -> bool:
        """Whether there is an answer, nothing of it is wrong, and nothing was left open."""
        return bool(self.answers) and not self.is_wrong and not self.blanks

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong, or could not be read."""
        return bool(self.read_error) or self.first_wrong is not None


def check_submissions(solution: Solution, paths: Sequence[str | Path]) -> list[Submission]:
    """Every paper among these files and folders, checked; one that cannot be read says why.

    >>> from regard.work.families.attention import solve_attention
    >>> check_submissions(solve_attention({"X": [[1]]}), ["nobody.toml"])[0].read_error
    'needs to be a TOML file, got nothing there'
    """
    files: list[Path] = []
    for place in map(Path, paths):
        found = sorted(place.glob("*.toml")) if place.is_dir() else [place]
        if not found:
            raise FileError(f"{place}: needs to hold TOML files, got none")
        files += found
    return [_paper(solution, file) for file in files]


def _paper(solution: Solution, file: Path) -> Submission:
    try:
        findings = check_answers(solution, read_toml(file))
    except RegardError as error:  # one paper that cannot be read does not stop the others
        return Submission(file.stem, 0, 0, None, str(error).removeprefix(f"{file}: "))
    right = sum(found.verdict == "right" for found in findings)
    left_open = tuple(found.name for found in findings if found.blanks)
    return Submission(file.stem, right, len(findings), first_wrong(findings), "", left_open)


def submissions_as_text(submissions: Sequence[Submission]) -> str:
    """The table, and under it which steps went wrong first and how often.

    >>> print(submissions_as_text([Submission("ada", 3, 3, None, "")]))
    ada  3 of 3  all right
    1 of 1 all right
    """
    wide = max(len(paper.name) for paper in submissions)
    lines = [
        f"{p.name:<{wide}}  {p.correct} of {p.answers}  {describe_submission(p)}"
        for p in submissions
    ]
    return "\n".join([*lines, *summarize_submissions(submissions)])


def summarize_submissions(submissions: Sequence[Submission]) -> list[str]:
    """How many papers are all right, and which steps went wrong first.

    >>> summarize_submissions([Submission("ada", 0, 0, None, "")])
    ['0 of 1 all right', 'not finished: ada']
    """
    lines = [f"{sum(paper.is_correct for paper in submissions)} of {len(submissions)} all right"]
    often = Counter(
        paper.first_wrong.name for paper in submissions if paper.first_wrong is not None
    )
    if often:
        told = ", ".join(f"{name} ({count})" for name, count in often.most_common())
        lines.append(f"wrong first: {told}")
    if late := [p.name for p in submissions if not p.is_correct and not p.is_wrong]:
        lines.append(f"not finished: {', '.join(late)}")
    return lines


def describe_submission(submission: Submission) -> str:
    """One paper in a few words.

    >>> describe_submission(Submission("ada", 0, 0, None, ""))
    'nothing was answered'
    """
    if submission.read_error:
        return f"not read: {submission.read_error}"
    if (
        len(submission.blanks) == submission.answers
        and not submission.correct
        and submission.first_wrong is None
    ):
        return "nothing was answered"
    still = f"; still open: {', '.join(submission.blanks)}" if submission.blanks else ""
    if submission.first_wrong is None:
        return f"what was given is right{still}" if still else "all right"
    why = (
        f", likely: {submission.first_wrong.diagnosis}" if submission.first_wrong.diagnosis else ""
    )
    return f"{submission.first_wrong.name} is wrong{why}{still}"
