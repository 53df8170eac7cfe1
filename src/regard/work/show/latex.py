"""Solutions as Markdown and LaTeX."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from regard.formulas import LATEX_SIGNS, parse_formula, parse_name
from regard.work.show.selection import DisplayStep, select, value_equation
from regard.work.solution import Solution

LATEX_PREAMBLE = (
    "\\documentclass{article}",
    "\\usepackage{amsmath}",
    "\\usepackage[margin=2cm]{geometry}",
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


def _itemize(items: Iterable[str]) -> list[str]:
    return ["\\begin{itemize}", *(f"\\item {item}" for item in items), "\\end{itemize}"]


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
    _itemize,
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
