"""Output formats of solutions, by name."""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from regard.errors import WorkError
from regard.work.show.html import as_html, html_body
from regard.work.show.latex import LATEX_PREAMBLE, as_latex, as_markdown, latex_lines
from regard.work.show.latex_escape import escape_latex
from regard.work.show.page import render_page
from regard.work.show.selection import check_names, has_name
from regard.work.show.text import as_text
from regard.work.solution import Solution


def _as_json(solution: Solution, digits: int, only: Sequence[str]) -> str:
    return json.dumps(
        solution.to_json(), indent=1, ensure_ascii=False
    )  # complete and exact, whatever `only` and `digits` are


FORMATS: dict[str, Callable[..., str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "html": as_html,
    "json": _as_json,
}

# a path without a suffix is text
FORMAT_BY_SUFFIX = {
    "": "text",
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".toml": "toml",
}


def infer_format(path: str | Path | None) -> str:
    """Format for the suffix of a path; text without one.

    >>> infer_format("a.html"), infer_format("a"), infer_format(None)
    ('html', 'text', 'text')
    >>> infer_format("a.pdf")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: out: needs a name that ends in .txt, .md, .tex, .html, .htm, .json, \
.toml, got a.pdf; try --format
    """
    ending = Path(path).suffix.lower() if path is not None else ""
    if ending not in FORMAT_BY_SUFFIX:
        known = ", ".join(filter(None, FORMAT_BY_SUFFIX))
        raise WorkError(f"out: needs a name that ends in {known}, got {path}; try --format")
    return FORMAT_BY_SUFFIX[ending]


def format_solution(
    solution: Solution, fmt: str = "text", digits: int = 6, only: Sequence[str] = ()
) -> str:
    """Format a solution; `only` selects steps by name or glob pattern.

    >>> from regard.work.families.attention import solve_attention
    >>> solution = solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)
    >>> print(format_solution(solution, "markdown", only=["S"])[:9])
    ## 1. The
    """
    if fmt not in FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(FORMATS)}, got {fmt!r}")
    return FORMATS[fmt](solution, digits, only)


def format_solutions(
    solutions: Mapping[str, Solution],
    fmt: str = "text",
    digits: int = 6,
    only: Sequence[str] = (),
) -> str:
    """Format several solutions, each under its heading; `only` may match in some of them.

    >>> from regard.work.families.attention import solve_attention
    >>> solution = {"a": solve_attention({"X": [[1]]}), "b": solve_attention({"X": [[2]]})}
    >>> print(format_solutions(solution, "markdown", only=["S"])[:14])
    # a
    <BLANKLINE>
    ## 1. The
    """
    if fmt not in FORMATS:
        raise WorkError(f"fmt: needs one of {', '.join(FORMATS)}, got {fmt!r}")
    check_names(only, *solutions.values())
    here = {
        heading: [name for name in only if has_name(solution, name)]
        for heading, solution in solutions.items()
    }
    wanted = {h: one for h, one in solutions.items() if here[h] or not only}
    if fmt == "json":
        return json.dumps({h: s.to_json() for h, s in wanted.items()}, indent=1, ensure_ascii=False)
    if fmt == "html":
        parts = [
            f'<div id="part-{n}" class="new"><h2>{escape(heading)}</h2>'
            + html_body(one, digits, here[heading], id_prefix=f"{n}-").replace("h2", "h3")
            + "</div>"
            for n, (heading, one) in enumerate(wanted.items(), 1)
        ]
        links = {f"part-{n}": heading for n, heading in enumerate(wanted, 1)}
        return render_page("By hand", f"{len(wanted)} solutions", "\n".join(parts), links)
    if fmt == "latex":
        lines: list[str] = [*LATEX_PREAMBLE]
        for heading, one in wanted.items():
            lines.append(f"\\section*{{{escape_latex(heading)}}}")
            inside = latex_lines(one, digits, here[heading])
            lines += [line.replace("\\section*", "\\paragraph*") for line in inside]
        return "\n".join([*lines, "\\end{document}", ""])
    head = "# {}" if fmt == "markdown" else "--- {}"
    texts = {h: FORMATS[fmt](one, digits, here[h]) for h, one in wanted.items()}
    return "\n\n".join(f"{head.format(h)}\n\n{text}" for h, text in texts.items())
