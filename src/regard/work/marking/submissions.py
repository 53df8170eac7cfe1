"""Marking of many answer files: one line per submission."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import FileError, RegardError
from regard.work.marking.findings import ROUNDED_EARLY, Finding, check_answers, first_wrong
from regard.work.problem import read_toml
from regard.work.solution import Solution


class Submission(NamedTuple):
    """Result of one answer file; `read_error` is set where it could not be read.

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
        """Whether everything is answered and right."""
        return bool(self.answers) and not self.is_wrong and not self.blanks

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong or unreadable."""
        return bool(self.read_error) or self.first_wrong is not None


def check_submissions(
    solution: Solution, paths: Sequence[str | Path], tolerance: Any = None
) -> list[Submission]:
    """Check every TOML file in these files and folders.

    >>> solution = rg.work.solve({"given": {"X": [[1]]}})
    >>> check_submissions(solution, ["nobody.toml"])[0].read_error
    'needs to be a TOML file, got no such file'
    """
    files: list[Path] = []
    for path in map(Path, paths):
        in_folder = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not in_folder:
            raise FileError(f"{path}: needs to hold TOML files, got none")
        files += in_folder
    return [_check_file(solution, file, tolerance) for file in files]


def _check_file(solution: Solution, file: Path, tolerance: Any) -> Submission:
    try:
        findings = check_answers(solution, read_toml(file), tolerance)
    except RegardError as error:  # an unreadable file does not stop the others
        return Submission(file.stem, 0, 0, None, str(error).removeprefix(f"{file}: "))
    correct = sum(finding.verdict in ("right", ROUNDED_EARLY) for finding in findings)
    blanks = tuple(finding.name for finding in findings if finding.blanks and not finding.unread)
    unread = "; ".join(f"{x.name} {why}" for x in findings for why in x.unread)
    return Submission(file.stem, correct, len(findings), first_wrong(findings), unread, blanks)


def summarize_submissions(submissions: Sequence[Submission]) -> list[str]:
    """Number of correct submissions, first wrong steps by frequency, and unfinished ones."""
    correct = sum(one.is_correct for one in submissions)
    lines = [f"{correct} of {len(submissions)} all right"]
    if counts := Counter(one.first_wrong.name for one in submissions if one.first_wrong):
        steps = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
        lines.append(f"wrong first: {steps}")
    if unfinished := [one.name for one in submissions if not one.is_correct and not one.is_wrong]:
        lines.append(f"not finished: {', '.join(unfinished)}")
    return lines


def describe_submission(submission: Submission) -> str:
    """Describe one result in a few words."""
    wrong, blanks = submission.first_wrong, submission.blanks
    if submission.read_error:
        return f"not read: {submission.read_error}"
    if len(blanks) == submission.answers and not submission.correct and wrong is None:
        return "nothing was answered"
    still_open = f"; still open: {', '.join(blanks)}" if blanks else ""
    if wrong is None:
        return f"what was given is right{still_open}" if blanks else "all right"
    diagnosis = f", likely: {wrong.diagnosis}" if wrong.diagnosis else ""
    return f"{wrong.name} is wrong{diagnosis}{still_open}"
