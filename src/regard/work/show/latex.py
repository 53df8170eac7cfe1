"""Solutions as Markdown and LaTeX."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import sympy

from regard.work.exact.numbers import format_decimal
from regard.work.rules import Matrix
from regard.work.show.mathml import LETTERS, OPERATORS
from regard.work.show.selection import DisplayStep, select
from regard.work.solution import Solution, tex_name

LATEX_PREAMBLE = (
    "\\documentclass{article}",
    "\\usepackage{amsmath}",
    "\\usepackage[margin=2cm]{geometry}",
    "\\setcounter{MaxMatrixCols}{40}",
    "\\setlength{\\parindent}{0pt}",
    "\\begin{document}",
)
# the first of several names of one sign; ASCII signs need no name
LATEX_SYMBOLS = {
    sign: f"\\{name}"
    for name, sign in reversed((LETTERS | OPERATORS).items())
    if not sign.isascii()
}
LATEX_SYMBOLS |= {"Σ": "\\sum", "‖": "\\|", "½": "\\tfrac12", "¼": "\\tfrac14", "²": "^2"}
LATEX_SYMBOLS |= {"³": "^3", "⁴": "^4", "ᵀ": "^\\top", "′": "'", "−": "-"}
LATEX_SYMBOLS |= {sign: sign for sign in "<>|"}
_ESCAPES = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "^": "\\textasciicircum{}",
    "~": "\\textasciitilde{}",
}
_IN_SENTENCE = str.maketrans({sign: f"${tex}$" for sign, tex in LATEX_SYMBOLS.items()} | _ESCAPES)
_IN_FORMULA = str.maketrans(
    {sign: f"{tex} " for sign, tex in LATEX_SYMBOLS.items()}
    | {digit: f"_{{{n}}}" for n, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")}
)


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
        parts += [markup.equation.format(tex_equation(*x, digits)) for x in shown.given.items()]
    for one in shown.steps:
        parts.append(heading(f"{one.number}. {markup.escape(one.heading)}"))
        parts.append(markup.equation.format(one.step.tex))
        if one.entry is not None:
            parts.append(markup.entry.format(_entry_tex(one, *one.entry)))
        parts += [markup.equation.format(line) for line in results_tex(one, digits)]
    if shown.remarks:
        parts += [heading("Remarks"), *markup.list_items(map(markup.escape, shown.remarks))]
    return parts


def results_tex(display: DisplayStep, digits: int) -> list[str]:
    """LaTeX of the results to show: exact, rounded, or both."""
    name, value = display.step.name, display.step.value
    return [tex_equation(name, value, digits, is_rounded) for is_rounded in display.results]


def _entry_tex(display: DisplayStep, arithmetic: str, result: str) -> str:
    name = tex_name(display.step.name)
    if display.step.value.shape != (1, 1):
        name = f"({name})_{{11}}" if "_" in display.step.name else f"{name}_{{11}}"
    sign = "\\approx" if result.endswith("…") else "="
    return f"{name} = {formula_tex(arithmetic)} {sign} {formula_tex(result.removesuffix(' …'))}"


def formula_tex(text: str) -> str:
    r"""Convert a plain-text formula to LaTeX.

    >>> print(formula_tex("exp(-1/2)·sqrt(2) + 2e-10·x_1"))
    \exp(-1/2)\cdot \sqrt{2} + 2\cdot 10^{-10}\cdot x_{1}
    """
    text = re.sub(r"(\d)e(-?)\+?0*(\d+)", r"\1·10^{\2\3}", text)
    text = re.sub(r"sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<!\\)\b(exp|tanh|log|sin|cos|max|min)\b", r"\\\1", text)
    text = re.sub(r"(?<!\\)\b([A-Za-z])_(\w+)", r"\1_{\2}", text)
    text = re.sub(r"(?<![\\{A-Za-z])([A-Za-z]{2,})\b", r"\\text{ \1 }", text)
    text = re.sub(r"\*\*(\w+)", r"^{\1}", text).replace("*", "\\,")
    text = re.sub(r"\binf\b|\\text\{ (inf|oo) \}", r"\\infty", text)
    return text.translate(_IN_FORMULA)


def tex_equation(name: str, value: Matrix, digits: int = 6, is_rounded: bool = False) -> str:
    r"""LaTeX equation of a name and its matrix; floats are always rounded.

    >>> print(tex_equation("W_Q", sympy.Matrix([[1, 2]])))
    W_{Q} = \begin{pmatrix} 1 & 2 \end{pmatrix}
    """
    is_rounded = is_rounded or value.has(sympy.Float)

    def format_number(x: sympy.Expr) -> str:
        return formula_tex(format_decimal(x, digits)) if is_rounded else sympy.latex(x)

    rows = [" & ".join(map(format_number, value.row(i))) for i in range(value.rows)]
    body = " \\\\ ".join(rows)
    if value.shape != (1, 1):
        body = f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}"
    return " ".join([tex_name(name), "\\approx" if is_rounded else "=", body])
