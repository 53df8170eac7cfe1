"""Solutions as Markdown and LaTeX."""

import re
from collections.abc import Callable, Sequence

import sympy

from regard.work.exact.numbers import format_decimal
from regard.work.rules import Matrix
from regard.work.show.latex_escape import LATEX_SYMBOLS, escape_latex
from regard.work.show.selection import DisplayStep, select_given, select_remarks, select_steps
from regard.work.solution import Solution, Step, tex_name

LATEX_PREAMBLE = (
    "\\documentclass{article}",
    "\\usepackage{amsmath}",
    "\\usepackage[margin=2cm]{geometry}",
    "\\setcounter{MaxMatrixCols}{40}",
    "\\setlength{\\parindent}{0pt}",
    "\\begin{document}",
)


def as_markdown(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    """Format a solution as Markdown with $$ formulas.

    >>> from regard.work.families.attention import solve_attention
    >>> as_markdown(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)).startswith("## Given")
    True
    """
    given, parts = select_given(solution, only), []
    if given:
        parts += ["## Given", *(f"$$ {tex_equation(n, v, digits)} $$" for n, v in given.items())]
    for one in select_steps(solution, only, digits):
        parts += [f"## {one.number}. {one.heading}", f"$$ {one.step.tex} $$"]
        if one.entry is not None:
            parts.append(f"$$ {entry_tex(one)} $$")
        parts += [f"$$ {line} $$" for line in results_tex(one, digits)]
    if remarks := select_remarks(solution, only):
        parts += ["## What follows", "\n".join(f"- {remark}" for remark in remarks)]
    return "\n\n".join(parts)


def as_latex(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> str:
    r"""Format a solution as a complete LaTeX document.

    >>> from regard.work.families.attention import solve_attention
    >>> as_latex(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)).splitlines()[0]
    '\\documentclass{article}'
    """
    return "\n".join([*LATEX_PREAMBLE, *latex_lines(solution, digits, only), "\\end{document}", ""])


def latex_lines(solution: Solution, digits: int = 6, only: Sequence[str] = ()) -> list[str]:
    r"""LaTeX lines of a solution, without preamble.

    >>> from regard.work.families.attention import solve_attention
    >>> latex_lines(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1), only=["S"])[1]
    '\\[ S = X X^\\top \\]'
    """
    given, lines = select_given(solution, only), []
    if given:
        lines += [
            "\\section*{Given}",
            *(f"\\[ {tex_equation(n, v, digits)} \\]" for n, v in given.items()),
        ]
    for one in select_steps(solution, only, digits):
        lines += [
            f"\\section*{{{one.number}. {escape_latex(one.heading)}}}",
            f"\\[ {one.step.tex} \\]",
        ]
        if one.entry is not None:
            lines.append(f"${entry_tex(one)}$")  # inline, so that long ones break
        lines += [f"\\[ {line} \\]" for line in results_tex(one, digits)]
    if remarks := select_remarks(solution, only):
        lines += ["\\section*{What follows}", "\\begin{itemize}"]
        lines += [f"\\item {escape_latex(remark)}" for remark in remarks]
        lines.append("\\end{itemize}")
    return lines


def results_tex(display: DisplayStep, digits: int) -> list[str]:
    """LaTeX of the results to show: exact, rounded, or both.

    >>> from regard.work.families.attention import solve_attention
    >>> results_tex(select_steps(solve_attention({"X": [[1], [2]]}, scale=1), ["S"])[0], 6)
    ['S = \\\\begin{pmatrix} 1 & 2 \\\\\\\\ 2 & 4 \\\\end{pmatrix}']
    """
    step, lines = display.step, []
    if display.entry is not None and step.value.shape == (1, 1):
        return []
    if display.show_exact:
        lines.append(tex_equation(step.name, step.value))
    if display.show_rounded:
        lines.append(
            f"{tex_name(step.name)} \\approx {_tex(step.value, decimal_tex_formatter(digits))}"
        )
    return lines


def entry_tex(display: DisplayStep) -> str:
    r"""LaTeX of the worked entry.

    >>> from regard.work.families.attention import solve_attention
    >>> print(entry_tex(select_steps(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1))[0]))
    S_{11} = 1\cdot 1 + 0\cdot 0 = 1
    """
    assert display.entry is not None
    equals = display.entry.result
    sign = "\\approx" if equals.endswith("…") else "="
    put_in, result = formula_tex(display.entry.expression), formula_tex(equals.removesuffix(" …"))
    return f"{_entry_name(display.step)} = {put_in} {sign} {result}"


def _entry_name(step: Step) -> str:
    if step.value.shape == (1, 1):
        return tex_name(step.name)
    return (
        f"({tex_name(step.name)})_{{11}}" if "_" in step.name else f"{tex_name(step.name)}_{{11}}"
    )


def formula_tex(text: str) -> str:
    r"""Convert a plain-text formula to LaTeX.

    >>> print(formula_tex("exp(-1/2)·sqrt(2) + 2e-10·x_1"))
    \exp(-1/2)\cdot \sqrt{2} + 2\cdot 10^{-10}\cdot x_{1}
    """
    text = re.sub(r"(\d)e([+-]?)0*(\d+)", _power, text)
    text = re.sub(r"sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<!\\)\b(exp|tanh|log|sin|cos|max|min)\b", r"\\\1", text)
    text = re.sub(r"(?<!\\)\b([A-Za-z])_(\w+)", r"\1_{\2}", text)
    text = re.sub(r"(?<![\\{A-Za-z])([A-Za-z]{2,})\b", r"\\text{ \1 }", text)
    text = re.sub(r"\*\*(\w+)", r"^{\1}", text).replace("*", "\\,")
    text = re.sub(r"-?\binf\b|-?\\text\{ (inf|oo) \}", _infinite, text)
    return "".join(_sign(letter) for letter in text)


def _power(match: re.Match[str]) -> str:
    return f"{match[1]}·10^{{{match[2].replace('+', '')}{match[3]}}}"


def _infinite(match: re.Match[str]) -> str:
    return f"{'-' if match[0].startswith('-') else ''}\\infty"


def _sign(letter: str) -> str:
    small = "₀₁₂₃₄₅₆₇₈₉".find(letter)
    if small >= 0:
        return f"_{{{small}}}"
    return f"{LATEX_SYMBOLS[letter]} " if letter in LATEX_SYMBOLS else letter


def decimal_tex_formatter(digits: int) -> Callable[[sympy.Expr], str]:
    r"""A function that formats numbers as LaTeX decimals.

    >>> print(decimal_tex_formatter(3)(sympy.exp(-30)), decimal_tex_formatter(3)(-sympy.oo))
    9.36\cdot 10^{-14} -\infty
    """
    return lambda x: formula_tex(format_decimal(x, digits))


def tex_equation(name: str, value: Matrix, digits: int = 6) -> str:
    r"""LaTeX equation of a name and its matrix.

    >>> print(tex_equation("W_Q", sympy.Matrix([[1, 2]])))
    W_{Q} = \begin{pmatrix} 1 & 2 \end{pmatrix}
    """
    if value.has(sympy.Float):  # a float of a model: rounded
        return f"{tex_name(name)} \\approx {_tex(value, decimal_tex_formatter(digits))}"
    return f"{tex_name(name)} = {_tex(value, sympy.latex)}"


def _tex(value: Matrix, format_number: Callable[[sympy.Expr], str]) -> str:
    if value.shape == (1, 1):
        return format_number(value[0, 0])
    rows = [" & ".join(format_number(x) for x in value.row(i)) for i in range(value.rows)]
    body = " \\\\ ".join(rows)
    return f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}"
