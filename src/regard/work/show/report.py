"""One document from one or several solutions: the output of `regard work PROBLEM...`."""

from collections.abc import Mapping, Sequence

from regard.errors import WorkError
from regard.work.families.recurrent.autograd import autograd_as_text, compare_with_autograd
from regard.work.show.formats import format_solution, format_solutions
from regard.work.show.selection import check_names, has_name
from regard.work.show.shapes import shapes_as_text
from regard.work.show.text import as_text
from regard.work.solution import Solution


def format_report(
    solutions: Mapping[str, Solution],
    fmt: str = "text",
    *,
    digits: int = 6,
    only: Sequence[str] = (),
    shapes: bool = False,
    autograd: bool = False,
) -> str:
    """Format solutions, each under its heading if there are several.

    Args:
        solutions: heading and solution.
        fmt: text, markdown, latex, html or json.
        digits: significant digits of decimals.
        only: names or glob patterns of the steps to show.
        shapes: show only the convention and the shape of each matrix (text only).
        autograd: compare the gradients of bptt problems with torch's autograd (text only).

    >>> from regard.work import read_problem, solve
    >>> print(format_report({"rnn": solve(read_problem("rnn"))}, shapes=True).splitlines()[0])
    W     2×2  given
    """
    if fmt != "text" and (shapes or autograd):
        raise WorkError(f"fmt: needs text for {'shapes' if shapes else 'autograd'}, got {fmt}")
    if not shapes and not autograd:
        if len(solutions) == 1:
            return format_solution(next(iter(solutions.values())), fmt, digits, only)
        return format_solutions(solutions, fmt, digits, only)
    check_names(only, *solutions.values())
    parts = {
        heading: shapes_as_text(solution) if shapes else _with_autograd(solution, digits, only)
        for heading, solution in solutions.items()
    }
    if len(parts) == 1:
        return next(iter(parts.values()))
    return "\n\n".join(f"--- {heading}\n\n{text}" for heading, text in parts.items())


def _with_autograd(solution: Solution, digits: int, only: Sequence[str]) -> str:
    names = [name for name in only if has_name(solution, name)]
    steps = [as_text(solution, digits, names)] if names else []
    return "\n\n".join([*steps, autograd_as_text(compare_with_autograd(solution))])
