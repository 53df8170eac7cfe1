"""Solutions as self-contained HTML pages with MathML formulas."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from regard.files import fill_page
from regard.work.rules import Matrix
from regard.work.show.selection import DisplayStep, matches_any, select, value_equation
from regard.work.show.text import entry_text
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
    facts = f"{len(names)} of {len(solution.steps)} steps" if only else f"{len(names)} steps"
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
