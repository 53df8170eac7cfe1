"""Marking of many answer files: one line per submission."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import FileError, RegardError
from regard.work.marking.findings import Finding, check_answers, first_wrong
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


def check_submissions(solution: Solution, paths: Sequence[str | Path]) -> list[Submission]:
    """Check every TOML file in these files and folders.

    >>> from regard.work.families.attention import solve_attention
    >>> check_submissions(solve_attention({"X": [[1]]}), ["nobody.toml"])[0].read_error
    'needs to be a TOML file, got nothing there'
    """
    files: list[Path] = []
    for path in map(Path, paths):
        files_here = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not files_here:
            raise FileError(f"{path}: needs to hold TOML files, got none")
        files += files_here
    return [_check_file(solution, file) for file in files]


def _check_file(solution: Solution, file: Path) -> Submission:
    try:
        findings = check_answers(solution, read_toml(file))
    except RegardError as error:  # an unreadable file does not stop the others
        return Submission(file.stem, 0, 0, None, str(error).removeprefix(f"{file}: "))
    correct = sum(files_here.verdict == "right" for files_here in findings)
    blanks = tuple(files_here.name for files_here in findings if files_here.blanks)
    return Submission(file.stem, correct, len(findings), first_wrong(findings), "", blanks)


def submissions_as_text(submissions: Sequence[Submission]) -> str:
    """Format the results as a table with a summary.

    >>> print(submissions_as_text([Submission("ada", 3, 3, None, "")]))
    ada  3 of 3  all right
    1 of 1 all right
    """
    width = max(len(submission.name) for submission in submissions)
    lines = [
        f"{p.name:<{width}}  {p.correct} of {p.answers}  {describe_submission(p)}"
        for p in submissions
    ]
    return "\n".join([*lines, *summarize_submissions(submissions)])


def summarize_submissions(submissions: Sequence[Submission]) -> list[str]:
    """Number of correct submissions, first wrong steps by frequency, and unfinished ones.

    >>> summarize_submissions([Submission("ada", 0, 0, None, "")])
    ['0 of 1 all right', 'not finished: ada']
    """
    correct = sum(submission.is_correct for submission in submissions)
    lines = [f"{correct} of {len(submissions)} all right"]
    counts = Counter(
        submission.first_wrong.name
        for submission in submissions
        if submission.first_wrong is not None
    )
    if counts:
        steps = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
        lines.append(f"wrong first: {steps}")
    if unfinished := [p.name for p in submissions if not p.is_correct and not p.is_wrong]:
        lines.append(f"not finished: {', '.join(unfinished)}")
    return lines


def describe_submission(submission: Submission) -> str:
    """Describe one result in a few words.

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
    blanks_text = f"; still open: {', '.join(submission.blanks)}" if submission.blanks else ""
    if submission.first_wrong is None:
        return f"what was given is right{blanks_text}" if blanks_text else "all right"
    diagnosis = (
        f", likely: {submission.first_wrong.diagnosis}" if submission.first_wrong.diagnosis else ""
    )
    return f"{submission.first_wrong.name} is wrong{diagnosis}{blanks_text}"
