"""Random exercises with simple numbers, and sheets of them."""

from regard.work.making.exercise import Exercise, make_exercise, make_sheet
from regard.work.making.sheets import format_sheet, write_sheet

__all__ = ["Exercise", "format_sheet", "make_exercise", "make_sheet", "write_sheet"]
