"""Marking: a student's answers compared with the solution, each error with its likely cause."""

from regard.work.marking.findings import Finding, check_answers
from regard.work.marking.submissions import Submission, check_submissions

__all__ = ["Finding", "Submission", "check_answers", "check_submissions"]
