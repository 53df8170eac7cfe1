"""Class mode: a problem and a sheet for each student, and the marks of a class."""

from regard.work.classroom.marks import ClassMarks, Mark, mark_class, parse_time
from regard.work.classroom.output import write_class
from regard.work.classroom.pages import write_marks
from regard.work.classroom.problems import Assignment, Class, load_class, make_class, parse_points
from regard.work.classroom.roster import Student, read_roster

__all__ = [
    "Assignment",
    "Class",
    "ClassMarks",
    "Mark",
    "Student",
    "load_class",
    "make_class",
    "mark_class",
    "parse_points",
    "parse_time",
    "read_roster",
    "write_class",
    "write_marks",
]
