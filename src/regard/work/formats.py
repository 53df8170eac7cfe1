"""The ways of writing a solution, by name."""

import json
from collections.abc import Callable, Sequence

from regard.errors import WorkError
from regard.work.show_html import as_html
from regard.work.show_tex import as_latex, as_markdown
from regard.work.show_text import as_text
from regard.work.solution import Solution


def _as_json(solution: Solution, digits: int, only: Sequence[str]) -> str:
    return json.dumps(solution.to_json(), indent=1, ensure_ascii=False)  # always whole and exact


FORMATS: dict[str, Callable[..., str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "html": as_html,
    "json": _as_json,
}


def shown_as(
    solution: Solution, form: str = "text", digits: int = 6, only: Sequence[str] = ()
) -> str:
    """A solution in one of the formats; `only` some of its steps, by name.

    >>> from regard.work import attention
    >>> print(shown_as(attention({"X": [[1, 0], [0, 2]]}, scale=1), "markdown", only=["S"])[:9])
    ## 1. The
    """
    if form not in FORMATS:
        raise WorkError(f"form: needs one of {', '.join(FORMATS)}, got {form!r}")
    return FORMATS[form](solution, digits, only)
