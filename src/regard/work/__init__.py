"""Worked solutions of exercises, exact and step by step, and marking of students' answers.

    exact.py   exact numbers: parsing, evaluation, formatting
    rules/     what a step may do: matrix function, formula, common mistakes
    families/  one solver per kind of problem, registered with `@family`, and its rules
    marking/   answers compared with a solution: the first wrong step and its likely cause
    show/      text, Markdown, LaTeX, HTML and JSON
    ask        answers to the questions of courses, in answers/
    making     random exercises and sheets of them

Each imports only from those above it. What is not exported here is imported from its module.
"""

from regard.work.ask import Answer, ask, find_answers
from regard.work.explain import Explanation, explain
from regard.work.families import FAMILIES
from regard.work.making import Exercise, format_sheet, make_exercise, make_sheet, write_sheet
from regard.work.marking import Finding, Submission, check_answers, check_submissions
from regard.work.problem import problem_names, problem_titles, read_problem, solve
from regard.work.show import format_solution, format_solutions
from regard.work.solution import Solution, SolutionBuilder, Step

__all__ = [
    "Answer", "Exercise", "Explanation", "FAMILIES", "Finding", "Solution", "SolutionBuilder",
    "Step", "Submission", "ask", "check_answers", "check_submissions", "explain",
    "find_answers", "format_sheet", "format_solution", "format_solutions", "make_exercise",
    "make_sheet", "problem_names", "problem_titles", "read_problem", "solve", "write_sheet",
]  # fmt: skip
