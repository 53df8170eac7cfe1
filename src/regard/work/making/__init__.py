"""New exercises with clean numbers, sheets of them, and a class's answers."""

from regard.work.making.exercise import Exercise, make, sheet
from regard.work.making.papers import Paper, papers, papers_as_text
from regard.work.making.plans import PLANS
from regard.work.making.sheets import SHEETS, sheet_as, write_sheet

__all__ = [
    "Exercise",
    "PLANS",
    "Paper",
    "SHEETS",
    "make",
    "papers",
    "papers_as_text",
    "sheet",
    "sheet_as",
    "write_sheet",
]
