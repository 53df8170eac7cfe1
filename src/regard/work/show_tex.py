"""A solution as Markdown, or as LaTeX that compiles."""

from collections.abc import Callable

import sympy

from regard.work.numbers import decimal, is_simple
from regard.work.rules import Matrix
from regard.work.solution import Solution, Step, tex_name
from regard.work.tex import tex_words


def as_markdown(solution: Solution, digits: int = 6) -> str:
    """The same for a Markdown page, formulas between dollars.

    >>> from regard.work import attention
    >>> as_markdown(attention({"X": [[1, 0], [0, 2]]}, scale=1)).startswith("## Given")
    True
    """
    parts = ["## Given", *(f"$$ {_tex_is(n, v)} $$" for n, v in solution.given.items())]
    for n, step in enumerate(solution.steps, 1):
        parts += [f"## {n}. {step.says[0].upper()}{step.says[1:]}", f"$$ {step.tex} $$"]
        parts += [f"$$ {line} $$" for line in _results(step, digits)]
    if solution.remarks:
        parts += ["## What follows", "\n".join(f"- {one}" for one in solution.remarks)]
    return "\n\n".join(parts)


def as_latex(solution: Solution, digits: int = 6) -> str:
    r"""The same as a LaTeX document that compiles by itself.

    >>> from regard.work import attention
    >>> as_latex(attention({"X": [[1, 0], [0, 2]]}, scale=1)).splitlines()[0]
    '\\documentclass{article}'
    """
    lines = [
        "\\documentclass{article}",
        "\\usepackage{amsmath}",
        "\\begin{document}",
        "\\section*{Given}",
        *(f"\\[ {_tex_is(name, value)} \\]" for name, value in solution.given.items()),
    ]
    for n, step in enumerate(solution.steps, 1):
        lines.append(f"\\section*{{{n}. {tex_words(step.says[0].upper() + step.says[1:])}}}")
        lines.append(f"\\[ {step.tex} \\]")
        lines += [f"\\[ {line} \\]" for line in _results(step, digits)]
    if solution.remarks:
        lines += ["\\section*{What follows}", "\\begin{itemize}"]
        lines += [f"\\item {tex_words(one)}" for one in solution.remarks]
        lines.append("\\end{itemize}")
    return "\n".join([*lines, "\\end{document}", ""])


def _results(step: Step, digits: int) -> list[str]:
    name, told = tex_name(step.name), []
    if all(map(is_simple, step.value)):
        told.append(_tex_is(step.name, step.value))
    if not all(x.is_Rational or x.is_infinite for x in step.value):
        told.append(f"{name} \\approx {_tex(step.value, lambda x: decimal(x, digits))}")
    return told


def _tex_is(name: str, value: Matrix) -> str:
    return f"{tex_name(name)} = {_tex(value, sympy.latex)}"


def _tex(value: Matrix, tell: Callable[[sympy.Expr], str]) -> str:
    if value.shape == (1, 1):
        return tell(value[0, 0])
    rows = [" & ".join(tell(x) for x in value.row(i)) for i in range(value.rows)]
    body = " \\\\ ".join(rows).replace("-inf", "-\\infty")
    return f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}"
