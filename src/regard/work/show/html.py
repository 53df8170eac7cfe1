"""Solutions as HTML with MathML formulas."""

from collections.abc import Sequence
from html import escape

from regard.work.show.latex import results_tex, tex_equation
from regard.work.show.mathml import tex_to_mathml
from regard.work.show.page import anchor_id, render_page
from regard.work.show.selection import DisplayStep, select_given, select_remarks, select_steps
from regard.work.show.text import entry_text
from regard.work.solution import Solution


def as_html(
    solution: Solution, digits: int = 6, only: Sequence[str] = (), title: str | None = None
) -> str:
    """Format a solution as a self-contained HTML page without scripts.

    >>> from regard.work.families.attention import solve_attention
    >>> "<h1>By hand: attention</h1>" in as_html(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1))
    True
    """
    steps = select_steps(solution, only, digits)
    links = {anchor_id(one.step.name): one.step.name for one in steps}
    facts = (
        f"{len(steps)} of {len(solution.steps)} steps" if only else f"{len(solution.steps)} steps"
    )
    heading = title or getattr(solution, "title", "") or f"By hand: {solution.family}"
    return render_page(heading, facts, html_body(solution, digits, only), links)


def html_body(
    solution: Solution, digits: int = 6, only: Sequence[str] = (), id_prefix: str = ""
) -> str:
    """HTML of a solution without the page; `id_prefix` keeps element ids unique.

    >>> from regard.work.families.attention import solve_attention
    >>> html_body(solve_attention({"X": [[1], [2]]}, scale=1), only=["S"])[:28]
    '<section id="at-S" aria-labe'
    """
    given, parts = select_given(solution, only), []
    if given:
        matrices = "".join(
            f'<div class="wide">{tex_to_mathml(tex_equation(n, v, digits))}</div>'
            for n, v in given.items()
        )
        parts.append(f'<section><h2>Given</h2><div class="row">{matrices}</div></section>')
    parts += [
        _section(solution, one, digits, id_prefix) for one in select_steps(solution, only, digits)
    ]
    if remarks := select_remarks(solution, only):
        items = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
        parts.append(f"<section><h2>What follows</h2><ul>{items}</ul></section>")
    return "\n".join(parts)


def _section(solution: Solution, one: DisplayStep, digits: int, before: str) -> str:
    at = before + anchor_id(one.step.name)
    rows, columns = one.step.value.shape
    parts = [
        f'<section id="{at}" aria-labelledby="{at}-h">',
        f'<h2 id="{at}-h"><span class="n">{one.number}</span>{escape(one.heading)}</h2>',
        f'<div class="wide">{tex_to_mathml(one.step.tex, display=True)}</div>',
    ]
    if one.entry is not None:
        parts.append(f'<p class="entry">{escape(entry_text(solution, one.step, digits))}</p>')
    results = [
        f"<div>{tex_to_mathml(line, display=True)}</div>" for line in results_tex(one, digits)
    ]
    if results:
        size = "" if rows == columns == 1 else f'<span class="soft">{rows} × {columns}</span>'
        parts.append(f'<div class="wide row">{"".join(results)}{size}</div>')
    return "\n".join([*parts, "</section>"])
