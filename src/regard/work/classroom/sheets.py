"""Printable sheets: one problem per student, as HTML, LaTeX, or PDF by an installed browser."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from regard.errors import FileError, WorkError
from regard.files import atomic_write, fill_page
from regard.formulas import FormulaTree, parse_formula, parse_name
from regard.work.classroom.problems import Assignment, Class, format_points
from regard.work.making import chosen_options, equations
from regard.work.show.formats import (
    LATEX,
    escape_latex,
    given_html,
    html_body,
    latex_document,
    mark_up,
)
from regard.work.show.text import value_equation
from regard.work.solution import Step

TEMPLATE = Path(__file__).with_name("page.html")
NOTATION = {  # what a formula may show: its definition, and words
    "ᵀ": ("Aᵀ", "the transpose of A"),
    "exp(": ("exp(A)", "of each entry"),
    "σ(": ("σ(x) = 1 / (1 + exp(-x))", "of each entry"),
    "tanh(": ("tanh(x) = (e^x - e^(-x))/(e^x + e^(-x))", "of each entry"),
    "max(0": ("max(0, A)", "of each entry"),
    "∘": ("A ∘ B", "the product entry by entry"),
    "^(∘2)": ("A^(∘2)", "the square of each entry"),
    "diag(": ("diag(a)", "the matrix with a on its diagonal and 0 elsewhere"),
    "𝟏": ("𝟏", "ones: A 𝟏 are the sums of the rows of A, 𝟏ᵀ A those of the columns"),
    "mean(": ("mean(A)", "the mean of each row"),
    "‖": ("‖a‖²", "the sum of the squares of the entries of a"),
    "(·,": ("A_(·, 1 … 2)", "columns 1 to 2 of A"),
    " | ": ("[A | B]", "A and B side by side"),
    "e_i": ("e_i", "1 at place i, and 0 elsewhere"),
    "log mask": ("log mask", "0 where the mask has a 1, -∞ where it has a 0"),
    "= β ": ("β", "the scale of the scores"),
    "+ ε)": ("ε", "is added for stability"),
}
GIVEN = {  # what a given matrix is, where the formulas do not show it
    "X": "the tokens",
    "Y": "the tokens that are attended to",
    "x_1": "the input of step 1",
    "h_0": "the state before step 1",
    "c_0": "the cell before step 1",
    "S_0": "the memory before step 1",
    "y": "the target",
}
KNOWN = "Used in the formulas"
INSTRUCTION = (
    "Write each result in its field, exact or with three digits, your work below it. A step is "
    "marked with your own numbers from before, so a slip costs its own step alone."
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSERS += ("msedge", "microsoft-edge")
INSTALLED = ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",)
INSTALLED += (r"C:\Program Files\Google\Chrome\Application\chrome.exe",)
PRINT_SECONDS = 300


def sheets_html(one: Class, assignments: Sequence[Assignment]) -> str:
    """A page of sheets, one student after the other, each on a new page of paper."""
    sheets = "\n".join(_sheet_html(one, x) for x in assignments)
    return fill_page(TEMPLATE, heading(one), {"BODY": sheets})


def solutions_html(one: Class) -> str:
    """A page with the solution of each student's problem."""
    parts = []
    for x in one.assignments:
        body = html_body(x.exercise.solution, id_prefix=f"{x.number}-", level=3)
        parts.append(
            f'<article class="sheet">{_head_html(f"Solution: {heading(one)}", x)}{body}</article>'
        )
    return fill_page(TEMPLATE, f"Solutions: {heading(one)}", {"BODY": "\n".join(parts)})


def heading(one: Class) -> str:
    """Title of the class's sheets."""
    return one.title or f"Exercise: {one.family.replace('-', ' ')}"


def definitions(x: Assignment) -> list[tuple[FormulaTree, str]]:
    """Given names, equations that are not asked for themselves, and notation, each with words."""
    given = [(parse_name(y), GIVEN[y]) for y in x.exercise.solution.given if y in GIVEN]
    titles = {step.equation.text: step.title for step in x.exercise.solution.steps}
    texts = {step.equation.text for step in x.steps}
    shown = [formula for formula in equations(x.exercise) if formula.text not in texts]
    text = "\n".join([*(y.text for y in equations(x.exercise)), *texts])
    signs = [
        (parse_formula(y, fractions=True), words)
        for sign, (y, words) in NOTATION.items()
        if sign in text
    ]
    return [*given, *((y, titles.get(y.text, "")) for y in shown), *signs]


def _head_html(title: str, x: Assignment) -> str:
    name, ident = map(escape, x.student[:2])
    return (
        f'<header><h2>{escape(title)}</h2><p class="who">Name: <b>{name}</b> <small>{ident}</small>'
        f"<span>Points: ______ of {x.total:g}</span></p></header>"
    )


def _sheet_html(one: Class, x: Assignment) -> str:
    items = "".join(
        f"<li>{formula.mathml()}{f': {escape(words)}' if words else ''}</li>"
        for formula, words in definitions(x)
    )
    known = f'<section><h3>{KNOWN}</h3><ul class="known">{items}</ul></section>' if items else ""
    steps = "".join(_step_html(x, step) for step in x.steps)
    return (
        f'<article class="sheet" id="{x.number}">{_head_html(heading(one), x)}'
        f"<section><h3>Given</h3>{given_html(x.exercise.solution.given)}"
        f'<p class="soft">{escape(chosen_options(x.exercise))}</p></section>'
        f"{known}<p>{INSTRUCTION}</p>{steps}</article>"
    )


def _step_html(x: Assignment, step: Step) -> str:
    rows, columns = step.value.shape
    cells = ("<tr>" + "<td></td>" * columns + "</tr>") * rows
    name, points = parse_name(step.name).mathml(), format_points(x.points[step.name])
    return (
        f'<section class="step"><h3><span class="points">{points}</span>'
        f"{step.equation.mathml()} <small>{escape(step.title)}</small></h3>"
        f'<div class="field">{name} = <table class="blank">{cells}</table>'
        f'</div><div class="room" style="height: {_room(rows)}"></div></section>'
    )


def _room(rows: int) -> str:
    """Height of the room for the work on a step."""
    return "1.3cm" if rows > 1 else "2cm"


def sheets_latex(one: Class, solutions: bool = False) -> str:
    """A LaTeX document of all sheets, or of all solutions."""
    lines: list[str] = []
    for x in one.assignments:
        title = f"{'Solution: ' if solutions else ''}{heading(one)}"
        who = " ".join(x.student[:2])
        lines += ["\\clearpage", LATEX.headings[0].format(escape_latex(title))]
        points = f"Points: \\underline{{\\hspace{{1cm}}}} of {x.total:g}"
        lines.append(f"Name: \\textbf{{{escape_latex(who)}}}\\hfill {points}\n")
        lines.append(f"\\pagestyle{{myheadings}}\\markright{{{escape_latex(who)}}}")
        lines += mark_up(LATEX, x.exercise.solution, level=3) if solutions else _sheet_latex(x)
    return latex_document(lines)


def _sheet_latex(x: Assignment) -> list[str]:
    lines = [LATEX.headings[2].format("Given")]
    given = (value_equation(*y).tex for y in x.exercise.solution.given.items())
    lines += [*(f"\\mbox{{$\\displaystyle {y}$}}\\hskip 2em plus 1fil" for y in given), ""]
    lines.append(LATEX.paragraph.format(escape_latex(chosen_options(x.exercise))))
    known = [(f"${formula.tex}$", escape_latex(words)) for formula, words in definitions(x)]
    if known:
        lines.append(LATEX.headings[2].format(KNOWN))
        lines += LATEX.list_items(": ".join(filter(None, pair)) for pair in known)
    lines.append(LATEX.paragraph.format(INSTRUCTION))
    for step in x.steps:
        rows, columns = step.value.shape
        row = " & ".join(["\\rule{0pt}{7mm}\\hspace*{13mm}"] * columns)
        body = " \\\\ ".join([row] * rows)
        blank = f"\\begin{{pmatrix}} {body} \\end{{pmatrix}}"
        lines.append("\\filbreak\\medskip\\hrule\\medskip")
        points = format_points(x.points[step.name])
        lines.append(
            f"\\textbf{{{points}}}\\quad ${step.equation.tex}$, {escape_latex(step.title)}\n"
        )
        lines.append(LATEX.equation.format(f"{parse_name(step.name).tex} = {blank}"))
        lines.append(f"\\vspace{{{_room(rows)}}}\n")
    return lines


def write_pdf(page: str, path: str | Path) -> Path:
    """Print an HTML page to a PDF by an installed Chromium or Chrome."""
    paths = (*map(shutil.which, BROWSERS), *(x for x in INSTALLED if Path(x).exists()))
    browser = next(filter(None, paths), None)
    if browser is None:
        raise WorkError(
            "pdf: needs Chromium or Chrome, got none of them on the PATH; try --format html and "
            "print it from any browser"
        )
    with tempfile.TemporaryDirectory(prefix="regard-") as folder, atomic_write(path) as temporary:
        source, target = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(page, encoding="utf-8")
        flags = ["--headless", "--disable-gpu", "--no-pdf-header-footer", "--no-first-run"]
        flags += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        flags += [f"--user-data-dir={folder}/profile", f"--print-to-pdf={target}"]
        try:
            done = subprocess.run(
                [browser, *flags, source.as_uri()], capture_output=True, timeout=PRINT_SECONDS
            )
            message = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        except (OSError, subprocess.TimeoutExpired) as error:
            message = str(error)
        if not target.is_file():
            raise FileError(f"{path}: cannot be printed by {browser}, {message:.200}")
        shutil.copyfile(target, temporary)
    return Path(path)
