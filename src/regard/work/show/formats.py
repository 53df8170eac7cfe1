"""Output formats of solutions, by name."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import WorkError, check_choice, counted
from regard.files import fill_page
from regard.formulas import LATEX_SIGNS, parse_formula, parse_name
from regard.work.families.recurrent.bptt import autograd_as_text, compare_with_autograd
from regard.work.problem import solve
from regard.work.rules import Matrix
from regard.work.show.text import (
    IN_ONE_LINE,
    DisplayStep,
    as_text,
    check_names,
    entry_text,
    has_name,
    matches_any,
    select,
    shapes_as_text,
    value_equation,
)
from regard.work.solution import Solution

TEMPLATE = Path(__file__).with_name("page.html")


def render_page(
    title: str, subtitle: str, body: str, links: Mapping[str, str] | None = None
) -> str:
    """Render a page without scripts; `links` maps element ids to navigation labels.

    >>> "<h1>A &lt; B</h1>" in render_page("A < B", "two of them", "<p>so it is</p>")
    True
    """
    anchors = [f'<a href="#{at}">{escape(name)}</a>' for at, name in (links or {}).items()]
    nav = ['<nav aria-label="Steps">', *anchors, "</nav>"] if anchors else []
    parts = {"SUBTITLE": escape(subtitle), "NAV": "\n".join(nav), "SECTIONS": body}
    return fill_page(TEMPLATE, title, parts)


def as_html(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    """Format a solution as an HTML page."""
    body = html_body(solution, digits, only)
    names = [step.name for step in solution.steps if matches_any(step.name, only)]
    facts = f"{len(names)} of {len(solution.steps)} steps" if only else counted(len(names), "step")
    title = getattr(solution, "title", "") or f"By hand: {solution.family}"
    return render_page(title, facts, body, {_anchor_id(name): name for name in names})


def html_body(
    solution: Solution,
    digits: int = 6,
    only: Sequence[str] = (),
    id_prefix: str = "",
    level: int = 2,
) -> str:
    """HTML of a solution without the page; `id_prefix` keeps element ids unique."""
    shown, parts, tag = select(solution, digits, only), [], f"h{level}"
    if shown.given:
        matrices = given_html(shown.given, digits)
        parts.append(f"<section><{tag}>Given</{tag}>{matrices}</section>")
    if shown.formulas:
        trees = [parse_formula(x).mathml(display=True) for x in shown.formulas]
        lines = "".join(f'<div class="wide">{tree}</div>' for tree in trees)
        parts.append(f"<section><{tag}>{IN_ONE_LINE}</{tag}>{lines}</section>")
    parts += [_section(solution, one, digits, id_prefix, tag) for one in shown.steps]
    if shown.remarks:
        items = "".join(f"<li>{escape(remark)}</li>" for remark in shown.remarks)
        parts.append(f"<section><{tag}>Remarks</{tag}><ul>{items}</ul></section>")
    return "\n".join(parts)


def given_html(given: Mapping[str, Matrix], digits: int = 6) -> str:
    """A row of given matrices."""
    matrices = [value_equation(*item, digits).mathml() for item in given.items()]
    cells = "".join(f'<div class="wide">{matrix}</div>' for matrix in matrices)
    return f'<div class="row">{cells}</div>'


def _section(solution: Solution, one: DisplayStep, digits: int, before: str, tag: str) -> str:
    at = before + _anchor_id(one.step.name)
    rows, columns = one.step.value.shape
    parts = [
        f'<section id="{at}" aria-labelledby="{at}-h">',
        f'<{tag} id="{at}-h"><span class="n">{one.number}</span>{escape(one.heading)}</{tag}>',
        f'<div class="wide">{one.step.equation.mathml(display=True)}</div>',
    ]
    if one.entry is not None:
        parts.append(f'<p class="entry">{escape(entry_text(solution, one.step, digits))}</p>')
    results = [tree.mathml(display=True) for tree in one.equations(digits)]
    if results:
        size = "" if rows == columns == 1 else f'<span class="soft">{rows} × {columns}</span>'
        equations = "".join(f"<div>{result}</div>" for result in results)
        parts.append(f'<div class="wide row">{equations}{size}</div>')
    return "\n".join([*parts, "</section>"])


def _anchor_id(name: str) -> str:
    """Element id of a step; names may hold any letter, ids only ASCII."""
    return "at-" + re.sub(r"[^A-Za-z0-9_]", lambda odd: f"{ord(odd[0]):x}-", name).strip("-")


LATEX_PREAMBLE = (
    "\\documentclass[a4paper]{article}",
    "\\usepackage{amsmath}",
    "\\usepackage[margin=2cm]{geometry}",
    "\\usepackage{graphicx}",
    "\\newsavebox{\\formula}",  # a formula that is wider than the page is shrunk to it
    "\\def\\[#1\\]{\\sbox{\\formula}{$\\displaystyle #1$}$$\\ifdim\\wd\\formula>\\linewidth",
    "\\resizebox{\\linewidth}{!}{\\usebox{\\formula}}\\else\\usebox{\\formula}\\fi$$}",
    "\\setcounter{MaxMatrixCols}{40}",
    "\\setlength{\\parindent}{0pt}",
    "\\begin{document}",
)
_ESCAPES = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "^": "\\textasciicircum{}",
    "~": "\\textasciitilde{}",
}
_SIGNS = {sign: tex for sign, tex in LATEX_SIGNS.items() if len(sign) == 1 and sign != "'"}
_SIGNS |= {sign: f"^{{{n}}}" for n, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "^-", "ᵀ": "^\\top"}
_SIGNS |= {sign: f"_{{{n}}}" for n, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")} | {
    sign: sign for sign in "<>|"
}
_IN_SENTENCE = str.maketrans({sign: f"${tex}$" for sign, tex in _SIGNS.items()} | _ESCAPES)


def escape_latex(text: str) -> str:
    r"""Escape a sentence for LaTeX; symbols become inline formulas.

    >>> print(escape_latex("σ(-x) is 50% at h_1"))
    $\sigma$(-x) is 50\% at h\_1
    """
    return text.translate(_IN_SENTENCE)


class Markup(NamedTuple):
    """Markup of a format whose formulas are LaTeX."""

    headings: tuple[str, str, str]  # by level, from 1
    equation: str
    entry: str
    paragraph: str
    list_items: Callable[[Iterable[str]], list[str]]
    escape: Callable[[str], str]


MARKDOWN = Markup(
    ("# {}", "## {}", "### {}"),
    "$$ {} $$",
    "$$ {} $$",
    "{}",
    lambda items: ["\n".join(f"- {item}" for item in items)],
    str,
)
LATEX = Markup(
    ("\\section*{{{}}}", "\\subsection*{{{}}}", "\\paragraph*{{{}}}"),
    "\\[ {} \\]",
    "${}$",  # inline, so that long ones break
    "{}\n",
    lambda items: [
        "\\begin{itemize}\\itemsep0pt",
        *(f"\\item {x}" for x in items),
        "\\end{itemize}",
    ],
    escape_latex,
)


def as_markdown(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    """Format a solution as Markdown with $$ formulas."""
    return "\n\n".join(mark_up(MARKDOWN, solution, digits, only, level=2))


def as_latex(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    """Format a solution as a complete LaTeX document."""
    return latex_document(mark_up(LATEX, solution, digits, only))


def latex_document(lines: Iterable[str]) -> str:
    """A complete LaTeX document with these lines."""
    return "\n".join([*LATEX_PREAMBLE, *lines, "\\end{document}", ""])


def mark_up(
    markup: Markup, solution: Solution, digits: int = 6, only: Sequence[str] = (), level: int = 1
) -> list[str]:
    r"""Headings, equations and lists of a solution, in order."""
    shown, heading, parts = select(solution, digits, only), markup.headings[level - 1].format, []
    if shown.given:
        parts.append(heading("Given"))
        parts += [
            markup.equation.format(value_equation(*x, digits).tex) for x in shown.given.items()
        ]
    if shown.formulas:
        parts.append(heading(IN_ONE_LINE))
        parts += [markup.equation.format(parse_formula(x).tex) for x in shown.formulas]
    for one in shown.steps:
        parts.append(heading(f"{one.number}. {markup.escape(one.heading)}"))
        parts.append(markup.equation.format(one.step.equation.tex))
        if one.entry is not None:
            parts.append(markup.entry.format(_entry_tex(one, *one.entry)))
        parts += [markup.equation.format(tree.tex) for tree in one.equations(digits)]
    if shown.remarks:
        parts += [heading("Remarks"), *markup.list_items(map(markup.escape, shown.remarks))]
    return parts


def _entry_tex(display: DisplayStep, arithmetic: str, result: str) -> str:
    name = parse_name(display.step.name).tex
    if display.step.value.shape != (1, 1):
        name = f"({name})_{{11}}" if "_" in display.step.name else f"{name}_{{11}}"
    sign = "\\approx" if result.endswith("…") else "="
    values = [parse_formula(text).tex for text in (arithmetic, result.removesuffix(" …"))]
    return f"{name} = {values[0]} {sign} {values[1]}"


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
    check_choice("fmt", fmt, FORMATS, WorkError)
    return FORMATS[fmt](solution, digits, only)


def format_solutions(
    solutions: Mapping[str, Solution], fmt: str = "text", digits: int = 6, only: Sequence[str] = ()
) -> str:
    """Format several solutions, each under its heading; `only` may match in some of them.

    >>> solution = rg.work.solve({"given": {"X": [[1]]}})
    >>> format_solutions({"a": solution, "b": solution}, "markdown", only=["S"])[:14]
    '# a\\n\\n## 1. The'
    """
    check_choice("fmt", fmt, FORMATS, WorkError)
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
        return render_page("By hand", counted(len(shown), "solution"), "\n".join(parts), links)
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
