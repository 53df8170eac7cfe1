"""A solution as a page for a browser, its formulas as MathML."""

from collections.abc import Sequence
from html import escape

from regard.work.mathml import mathml
from regard.work.page import anchor, page
from regard.work.show_tex import results_tex, tex_is
from regard.work.show_text import worked_entry
from regard.work.shown import Shown, given_shown, remarks_shown, shown
from regard.work.solution import Solution


def as_html(
    solution: Solution, digits: int = 6, only: Sequence[str] = (), title: str | None = None
) -> str:
    """The solution as one page that needs nothing else: no network, no script.

    >>> from regard.work import attention
    >>> "<h1>By hand: attention</h1>" in as_html(attention({"X": [[1, 0], [0, 2]]}, scale=1))
    True
    """
    steps = shown(solution, only, digits)
    links = {anchor(one.step.name): one.step.name for one in steps}
    facts = (
        f"{len(steps)} of {len(solution.steps)} steps" if only else f"{len(solution.steps)} steps"
    )
    told = title or getattr(solution, "title", "") or f"By hand: {solution.family}"
    return page(told, facts, html_body(solution, digits, only), links)


def html_body(
    solution: Solution, digits: int = 6, only: Sequence[str] = (), before: str = ""
) -> str:
    """The solution without the page around it; `before` keeps the places of several apart.

    >>> from regard.work import attention
    >>> html_body(attention({"X": [[1], [2]]}, scale=1), only=["S"])[:28]
    '<section id="at-S" aria-labe'
    """
    given, parts = given_shown(solution, only), []
    if given:
        told = "".join(
            f'<div class="wide">{mathml(tex_is(n, v, digits))}</div>' for n, v in given.items()
        )
        parts.append(f'<section><h2>Given</h2><div class="row">{told}</div></section>')
    parts += [_section(solution, one, digits, before) for one in shown(solution, only, digits)]
    if remarks := remarks_shown(solution, only):
        items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
        parts.append(f"<section><h2>What follows</h2><ul>{items}</ul></section>")
    return "\n".join(parts)


def _section(solution: Solution, one: Shown, digits: int, before: str) -> str:
    at = before + anchor(one.step.name)
    rows, columns = one.step.value.shape
    parts = [
        f'<section id="{at}" aria-labelledby="{at}-h">',
        f'<h2 id="{at}-h"><span class="n">{one.at}</span>{escape(one.says)}</h2>',
        f'<div class="wide">{mathml(one.step.tex, large=True)}</div>',
    ]
    if one.entry is not None:
        parts.append(f'<p class="entry">{escape(worked_entry(solution, one.step, digits))}</p>')
    told = [f"<div>{mathml(line, large=True)}</div>" for line in results_tex(one, digits)]
    if told:
        size = "" if rows == columns == 1 else f'<span class="soft">{rows} × {columns}</span>'
        parts.append(f'<div class="wide row">{"".join(told)}{size}</div>')
    return "\n".join([*parts, "</section>"])
