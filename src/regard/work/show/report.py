"""One document from one or several solutions: the output of `regard work PROBLEM...`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regard.errors import WorkError
from regard.work.families.recurrent.autograd import autograd_as_text, compare_with_autograd
from regard.work.problem import solve
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
    autograd: bool = False,
) -> str:
    """Format solutions, each under its heading if there are several.

    Args:
        solutions: heading and solution.
        fmt: text, markdown, latex, html or json.
        digits: significant digits of decimals.
        only: names or glob patterns of the steps to show.
        autograd: compare the gradients of bptt problems with torch's autograd (text only).

    >>> from regard.work import read_problem, solve
    >>> print(format_report({"rnn": solve(read_problem("rnn"))}, only=["h_1"]).splitlines()[0])
    4. The state after step 1
    """
    if fmt != "text" and autograd:
        raise WorkError(f"fmt: needs text for autograd, got {fmt}")
    if not autograd:
        if len(solutions) == 1:
            return format_solution(next(iter(solutions.values())), fmt, digits, only)
        return format_solutions(solutions, fmt, digits, only)
    check_names(only, *solutions.values())
    parts = {
        heading: _with_autograd(solution, digits, only) for heading, solution in solutions.items()
    }
    if len(parts) == 1:
        return next(iter(parts.values()))
    return "\n\n".join(f"--- {heading}\n\n{text}" for heading, text in parts.items())


def _with_autograd(solution: Solution, digits: int, only: Sequence[str]) -> str:
    names = [name for name in only if has_name(solution, name)]
    steps = [as_text(solution, digits, names)] if names else []
    return "\n\n".join([*steps, autograd_as_text(compare_with_autograd(solution))])


def iter_shapes(problems: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Shape table of each problem, solved one at a time: an error does not hide earlier tables.

    >>> print(next(iter_shapes({"a": {"given": {"X": [[1, 2]]}}})).splitlines()[1])
    X  1×2  given
    """
    for heading, problem in problems.items():
        text = shapes_as_text(solve(problem))
        yield f"--- {heading}\n\n{text}" if len(problems) > 1 else text
