"""Output formats of solutions, marks and shapes: text, Markdown, LaTeX, HTML and JSON."""

from regard.work.show.formats import format_solution, format_solutions

__all__ = ["format_solution", "format_solutions"]
