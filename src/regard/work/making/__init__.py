"""New exercises with clean numbers, sheets of them, and a class's answers."""

from regard.work.making.exercise import Exercise, make_exercise, make_sheet
from regard.work.making.sheets import SHEET_FORMATS, format_sheet, write_sheet
from regard.work.making.templates import EXERCISE_TEMPLATES
from regard.work.marking.submissions import Submission, check_submissions, submissions_as_text

__all__ = [
    "Exercise",
    "EXERCISE_TEMPLATES",
    "Submission",
    "SHEET_FORMATS",
    "make_exercise",
    "check_submissions",
    "submissions_as_text",
    "make_sheet",
    "format_sheet",
    "write_sheet",
]
