"""Output formats of solutions, by name."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.errors import WorkError
from regard.work.families.recurrent.autograd import autograd_as_text, compare_with_autograd
from regard.work.problem import solve
from regard.work.show.html import as_html, html_body, render_page
from regard.work.show.latex import (
    LATEX,
    as_latex,
    as_markdown,
    escape_latex,
    latex_document,
    mark_up,
)
from regard.work.show.selection import check_names, has_name
from regard.work.show.text import as_text, shapes_as_text
from regard.work.solution import Solution

FORMATS: dict[str, Callable[[Solution, int, Sequence[str]], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "html": as_html,
    # complete and exact, whatever is selected
    "json": lambda solution, digits, only: dump_json(solution.to_json()),
}
FORMAT_BY_SUFFIX = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".toml": "toml",
}


def dump_json(data: object) -> str:
    """JSON of a document."""
    return json.dumps(data, indent=1, ensure_ascii=False)


def infer_format(path: str | Path | None) -> str:
    """Format for the suffix of a path; text without one.

    >>> infer_format("a.html"), infer_format("a"), infer_format(None)
    ('html', 'text', 'text')
    """
    suffix = Path(path).suffix.lower() if path is not None else ""
    if suffix and suffix not in FORMAT_BY_SUFFIX:
        known = ", ".join(FORMAT_BY_SUFFIX)
        raise WorkError(f"out: needs a name that ends in {known}, got {path}; try --format")
    return FORMAT_BY_SUFFIX.get(suffix, "text")


def format_solution(
    solution: Solution, fmt: str = "text", digits: int = 6, only: Sequence[str] = ()
) -> str:
    """Format a solution; `only` selects steps by name or glob pattern.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [0, 2]]}, "scale": 1})
    >>> print(format_solution(solution, "markdown", only=["S"])[:9])
    ## 1. The
    """
    if fmt not in FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(FORMATS)}, got {fmt!r}")
    return FORMATS[fmt](solution, digits, only)


def format_solutions(
    solutions: Mapping[str, Solution], fmt: str = "text", digits: int = 6, only: Sequence[str] = ()
) -> str:
    """Format several solutions, each under its heading; `only` may match in some of them.

    >>> solution = rg.work.solve({"given": {"X": [[1]]}})
    >>> format_solutions({"a": solution, "b": solution}, "markdown", only=["S"])[:14]
    '# a\\n\\n## 1. The'
    """
    if fmt not in FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(FORMATS)}, got {fmt!r}")
    check_names(only, *solutions.values())
    names = {
        heading: [name for name in only if has_name(solution, name)]
        for heading, solution in solutions.items()
    }
    shown = {heading: one for heading, one in solutions.items() if names[heading] or not only}
    if fmt == "json":
        return dump_json({heading: one.to_json() for heading, one in shown.items()})
    if fmt == "html":
        parts, links = [], {f"part-{n}": heading for n, heading in enumerate(shown, 1)}
        for n, (heading, one) in enumerate(shown.items(), 1):
            body = html_body(one, digits, names[heading], id_prefix=f"{n}-", level=3)
            title = f"<h2>{escape(heading)}</h2>"
            parts.append(f'<div id="part-{n}" class="new">{title}{body}</div>')
        return render_page("By hand", f"{len(shown)} solutions", "\n".join(parts), links)
    if fmt == "latex":
        lines = []
        for heading, one in shown.items():
            lines.append(LATEX.headings[0].format(escape_latex(heading)))
            lines += mark_up(LATEX, one, digits, names[heading], level=3)
        return latex_document(lines)
    mark = "#" if fmt == "markdown" else "---"
    return "\n\n".join(
        f"{mark} {heading}\n\n{FORMATS[fmt](one, digits, names[heading])}"
        for heading, one in shown.items()
    )


def format_report(
    solutions: Mapping[str, Solution],
    fmt: str = "text",
    *,
    digits: int = 6,
    only: Sequence[str] = (),
    autograd: bool = False,
) -> str:
    """Format solutions, each under its heading if there are several.

    `autograd` compares the gradients of bptt problems with torch's autograd instead (text only).
    """
    if fmt != "text" and autograd:
        raise WorkError(f"fmt: needs text for autograd, got {fmt}")
    if len(solutions) == 1 and not autograd:
        return format_solution(next(iter(solutions.values())), fmt, digits, only)
    if not autograd:
        return format_solutions(solutions, fmt, digits, only)
    check_names(only, *solutions.values())
    parts = []
    for heading, solution in solutions.items():
        names = [name for name in only if has_name(solution, name)]
        parts += [f"--- {heading}"] if len(solutions) > 1 else []
        parts += [as_text(solution, digits, names)] if names else []
        parts.append(autograd_as_text(compare_with_autograd(solution)))
    return "\n\n".join(parts)


def iter_shapes(problems: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Shape table of each problem, solved one at a time: an error does not hide earlier tables."""
    for heading, problem in problems.items():
        text = shapes_as_text(solve(problem))
        yield f"--- {heading}\n\n{text}" if len(problems) > 1 else text
