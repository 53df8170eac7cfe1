"""The ways of writing a solution, by name."""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from regard.errors import WorkError
from regard.work.page import page
from regard.work.show_html import as_html, html_body
from regard.work.show_tex import PREAMBLE, as_latex, as_markdown, latex_lines
from regard.work.show_text import as_text
from regard.work.shown import has_name, need_names
from regard.work.solution import Solution
from regard.work.tex import tex_words


def _as_json(solution: Solution, digits: int, only: Sequence[str]) -> str:
    return json.dumps(solution.to_json(), indent=1, ensure_ascii=False)  # always whole and exact


FORMATS: dict[str, Callable[..., str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "html": as_html,
    "json": _as_json,
}

# a name without an ending is a text
ENDINGS = {
    "": "text",
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".toml": "toml",
}


def form_of(out: str | Path | None) -> str:
    """The format that the ending of a file's name stands for; text where there is none.

    >>> form_of("a.html"), form_of("a"), form_of(None)
    ('html', 'text', 'text')
    >>> form_of("a.pdf")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: out: needs a name that ends in .txt, .md, .tex, .html, .htm, .json, \
.toml, got a.pdf; try --format
    """
    ending = Path(out).suffix.lower() if out is not None else ""
    if ending not in ENDINGS:
        known = ", ".join(filter(None, ENDINGS))
        raise WorkError(f"out: needs a name that ends in {known}, got {out}; try --format")
    return ENDINGS[ending]


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


def several_as(
    solutions: Mapping[str, Solution],
    form: str = "text",
    digits: int = 6,
    only: Sequence[str] = (),
) -> str:
    """Several solutions one after another, each under its heading; a step need not be in each.

    >>> from regard.work import attention
    >>> worked = {"a": attention({"X": [[1]]}), "b": attention({"X": [[2]]})}
    >>> print(several_as(worked, "markdown", only=["S"])[:14])
    # a
    <BLANKLINE>
    ## 1. The
    """
    if form not in FORMATS:
        raise WorkError(f"form: needs one of {', '.join(FORMATS)}, got {form!r}")
    need_names(only, *solutions.values())
    here = {
        heading: [name for name in only if has_name(solution, name)]
        for heading, solution in solutions.items()
    }
    wanted = {h: one for h, one in solutions.items() if here[h] or not only}
    if form == "json":
        return json.dumps({h: s.to_json() for h, s in wanted.items()}, indent=1, ensure_ascii=False)
    if form == "html":
        parts = [
            f'<div id="part-{n}" class="new"><h2>{escape(heading)}</h2>'
            + html_body(one, digits, here[heading], before=f"{n}-").replace("h2", "h3")
            + "</div>"
            for n, (heading, one) in enumerate(wanted.items(), 1)
        ]
        links = {f"part-{n}": heading for n, heading in enumerate(wanted, 1)}
        return page("By hand", f"{len(wanted)} solutions", "\n".join(parts), links)
    if form == "latex":
        lines: list[str] = [*PREAMBLE]
        for heading, one in wanted.items():
            lines.append(f"\\section*{{{tex_words(heading)}}}")
            inside = latex_lines(one, digits, here[heading])
            lines += [line.replace("\\section*", "\\paragraph*") for line in inside]
        return "\n".join([*lines, "\\end{document}", ""])
    head = "# {}" if form == "markdown" else "--- {}"
    told = {h: FORMATS[form](one, digits, here[h]) for h, one in wanted.items()}
    return "\n\n".join(f"{head.format(h)}\n\n{text}" for h, text in told.items())
