"""Formatted solutions: every format of every problem, complete, well formed, same numbers."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import FileError, RegardError, WorkError
from regard.files import write_text
from regard.formulas import LATEX_SIGNS, parse_formula, parse_value
from regard.work.exact import format_decimal
from regard.work.rules import RULES
from regard.work.show.formats import FORMATS, as_html, as_latex
from regard.work.show.pictures import draw_maps
from regard.work.show.text import as_rich, as_text
from regard.work.solution import SolutionBuilder

run = CliRunner()
VOID = {"meta", "br", "hr", "img", "input", "link"}
ONE = {"mfrac": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "munderover": 3, "mover": 2}
ONE |= {"mroot": 2}


def solved(name):
    if name not in _SOLVED:
        _SOLVED[name] = work.solve(work.read_problem(name))
    return _SOLVED[name]


_SOLVED = {}


def of_each_family():
    """Every problem; where a family has several, all but the first are for the slow tests."""
    seen = set()
    for name in work.problem_names():
        family = work.read_problem(name).get("family", "attention")
        yield pytest.param(name, marks=[pytest.mark.slow] if family in seen else [])
        seen.add(family)


class Strict(HTMLParser):
    """A page read strictly: every tag closed in order, scripts of formulas with all their parts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.children, self.tags, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if self.children:
            self.children[-1] += 1
        if tag not in VOID:
            self.open.append(tag)
            self.children.append(0)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        parts = self.children.pop()
        assert parts == ONE.get(tag, parts), tag

    def handle_data(self, data):
        self.words.append(data)


LATEX_COMMANDS = {"frac", "sqrt", "begin", "end", "left", "right", "operatorname", "text", "mathrm"}
LATEX_COMMANDS |= {"lVert", "rVert", "tfrac", "exp", "log", "tanh", "sin", "cos", "max", "min"}
LATEX_COMMANDS |= {"lim", *re.findall(r"\\([A-Za-z]+)", "".join(LATEX_SIGNS.values()))}


def assert_is_latex(tex):
    """Braces, brackets and environments closed, and every command known."""
    assert set(re.findall(r"\\([A-Za-z]+)", tex)) <= LATEX_COMMANDS
    depth = 0
    for sign in tex:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert tex.count(r"\left") == tex.count(r"\right")
    assert tex.count(r"\begin{pmatrix}") == tex.count(r"\end{pmatrix}")


# ---- worked numbers


def test_a_formula_prints_as_text_latex_and_mathml():
    formula = parse_formula("½ {0}ᵀ ∘ (1 - {1}²)").fill("K", "h_10")
    assert formula.text == "½ Kᵀ ∘ (1 - h_10²)"
    assert formula.tex == r"\tfrac12\, K^{\top} \circ (1 - h_{10}^{2})"
    assert parse_formula("{0}/{1}ᵀ", fractions=True).fill("a", "K").mathml() == (
        "<math><mfrac><mi>a</mi><msup><mi>K</mi><mo>⊤</mo></msup></mfrac></math>"
    )
    assert parse_formula("[1, -inf; x, 2]").mathml() == (
        '<math><mrow><mo fence="true">(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mrow><mo>−</mo>'
        "<mi>∞</mi></mrow></mtd></mtr><mtr><mtd><mi>x</mi></mtd><mtd><mn>2</mn></mtd></mtr>"
        '</mtable><mo fence="true">)</mo></mrow></math>'
    )
    assert "<munderover><mo>∑</mo>" in parse_formula("Σ_(j=1)^n x_j").mathml()
    assert "<mo>&lt;</mo>" in parse_formula("a < b").mathml()


@pytest.mark.parametrize(
    ("number", "tex"),
    {
        "-sqrt(2)/2": r"-\frac{\sqrt{2}}{2}",
        "2*a**2 + 1": "2 a^{2} + 1",
        "E*x/(1 + exp(-x))": r"\frac{e x}{1 + e^{-x}}",
        "exp(a)/(b + c)*exp(b)/d": r"\frac{e^{a}}{b + c} \frac{e^{b}}{d}",
        "(a/b)*(1 - a/b)": r"\frac{a}{b} \left( 1 - \frac{a}{b} \right)",
        "tanh(x)**2 - 3*2": r"\tanh^{2}(x) - 3\cdot2",
        "Max(0, x_1)": r"\max(0, x_{1})",
        "-oo": r"-\infty",
        "1.5e-10": r"1.5\cdot10^{-10}",
    }.items(),
)
def test_numbers_as_sympy_prints_them_become_fractions_roots_and_powers(number, tex):
    assert parse_value(number).tex == tex


def test_the_page_shows_the_matrices_of_the_solution():
    worked = solved("three-tokens")
    page = Strict(as_html(worked))
    text = "".join(page.words)
    assert "Q₁₁ = 1·0 + (-1)·1 + 0·(-1/2) + 2·1 = 1" in text
    assert "".join(format_decimal(x) for x in worked["H"]).replace("-", "−") in text
    assert [a["href"] for tag, a in page.tags if tag == "a"][1:3] == ["#at-Q", "#at-K"]
    places = {a["id"] for _, a in page.tags if "id" in a}
    assert {a["href"][1:] for tag, a in page.tags if tag == "a"} <= places


# ---- properties


@pytest.mark.parametrize("name", list(of_each_family()))
def test_every_problem_is_a_whole_page_that_asks_for_nothing(name):
    text = as_html(solved(name))
    page = Strict(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert not any({"src", "srcset"} & set(attrs) for _, attrs in page.tags)
    assert all(a["href"].startswith("#") for _, a in page.tags if "href" in a)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))


@pytest.mark.parametrize("name", list(of_each_family()))
def test_the_latex_of_every_problem_is_well_formed(name):
    tex = as_latex(solved(name))
    assert tex.isascii()
    formulas = re.findall(r"^\\\[ (.*) \\\]$|^\$(.*)\$$", tex, re.MULTILINE)
    assert len(formulas) >= len(solved(name).steps)
    for one in formulas:
        assert_is_latex("".join(one))
    begun, ended = (re.findall(rf"\\{word}\{{(\w+)\}}", tex) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended)


@pytest.mark.parametrize("rule", [pytest.param(r, id=n) for n, r in RULES.items()])
def test_the_formula_of_every_rule_prints_in_each_format(rule):
    names = [f"W_{n}" for n in range(16)]
    formula = rule.formula.fill(*names)
    assert parse_formula(formula.text, fractions=True).text == formula.text
    assert_is_latex(formula.tex)
    assert formula.tex.isascii()
    Strict(formula.mathml(display=True))
    assert not re.search(r"\{\d+\}", formula.text)
    assert set(re.findall(r"W_\d+", formula.text)) <= set(names)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed here")
@pytest.mark.parametrize("name", work.problem_names())
def test_the_latex_of_every_problem_compiles(name, tmp_path):
    (tmp_path / "it.tex").write_text(as_latex(solved(name)))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "it.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:]
    assert (tmp_path / "it.pdf").stat().st_size > 1000


def test_colours_change_no_letter():
    worked = solved("lstm")
    assert as_rich(worked).plain == as_text(worked)
    assert {span.style for span in as_rich(worked).spans} >= {"bold", "cyan"}


@pytest.mark.parametrize("form", FORMATS)
def test_only_some_steps_can_be_shown_with_their_own_numbers(form):
    worked = solved("three-tokens")
    text = work.format_solution(worked, form, only=["A", "H"])
    if form != "json":
        assert "weights: they sum to 1" in text
        assert "exponentials" not in text
        assert "Given" not in text
    assert "8" in text


def test_what_stands_in_a_step_is_text_not_markup():
    working = SolutionBuilder("<b>", {"a": [[1]]})
    working.add_step("b", "exp", "a", title="<script>alert(1)</script> & [[BODY]]")
    working.add_remark("<i>")
    page = Strict(as_html(working.build()))
    assert not {"script", "b", "i"} & {tag for tag, _ in page.tags}
    assert any("[[BODY]]" in words for words in page.words)


def test_wide_matrices_are_within_what_latex_allows():
    wide = SolutionBuilder("wide", {"a": [list(range(12))]}).build()
    assert "\\setcounter{MaxMatrixCols}{40}" in as_latex(wide)


def test_small_and_infinite_numbers_are_powers_and_signs_in_formulas():
    working = SolutionBuilder("small", {"a": [[-30, "-inf"]]})
    working.add_step("b", "exp", "a", title="small")
    tex = as_latex(working.build())
    assert "9.35762\\cdot10^{-14}" in tex
    assert "-\\infty" in tex


# ---- the command and errors


def test_the_command_writes_a_page_whole(tmp_path):
    run, out = CliRunner(), tmp_path / "it.html"
    done = run.invoke(app, ["work", "self-attention", "--format", "html", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output == f"{out}: 5 steps\n"
    assert out.read_text() == as_html(solved("self-attention"))
    assert list(tmp_path.iterdir()) == [out]
    bad = run.invoke(
        app, ["work", "self-attention", "--format", "html", "-o", str(tmp_path / "no/it.html")]
    )
    assert bad.exit_code == 2
    shown = run.invoke(app, ["work", "self-attention", "--only", "H"])
    assert shown.output == as_text(solved("self-attention"), only=["H"]) + "\n"


@pytest.mark.usefixtures("users_view")
def test_what_cannot_be_shown_is_reported(tmp_path):
    with pytest.raises(WorkError, match="only: needs names of steps, X, .*got 'h'"):
        as_text(solved("self-attention"), only=["h"])
    with pytest.raises(WorkError, match="fmt: needs one of text"):
        work.format_solution(solved("self-attention"), "pdf")
    for broken in ("(a", "√", "a + [b", "x^", "‖a"):
        with pytest.raises(RegardError, match="formula: needs"):
            parse_formula(broken)
    with pytest.raises(FileError, match="cannot be written"):
        write_text(tmp_path / "no" / "it.html", "")


def test_choices_can_be_set_and_gone_through():
    run = CliRunner()
    shown = run.invoke(app, ["work", "three-tokens", "--set", "mask=causal", "--only", "A"])
    causal = work.solve(work.read_problem("three-tokens") | {"mask": "causal"})
    assert shown.output == as_text(causal, only=["A"]) + "\n"
    each = run.invoke(app, ["work", "three-tokens", "--each", "scale=0,1/2", "--only", "A"]).output
    assert each.startswith("--- scale = 0\n")
    assert "A = [1/3  1/3  1/3]" in each
    assert "\n--- scale = 1/2\n" in each
    for bad in ("mask", "msk=causal", "=1"):
        assert run.invoke(app, ["work", "three-tokens", "--set", bad]).exit_code == 2


def test_working_by_hand_does_not_wait_for_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from regard.cli import app; "
        "print(CliRunner().invoke(app, ['work', 'self-attention']).exit_code, "
        "'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]


def test_several_problems_share_what_can_be_shared_and_refuse_the_rest():
    run = CliRunner()
    shapes = run.invoke(app, ["work", "self-attention", "column-convention", "--shapes"])
    assert "--- self-attention" in shapes.output
    assert "tokens are columns" in shapes.output
    held = run.invoke(app, ["work", "bptt-rnn", "bptt-gru", "--autograd", "--only", "dW"])
    assert held.output.count("autograd error") == 2
    alone = run.invoke(app, ["work", "bptt-rnn", "--autograd", "--only", "dW"])
    assert "dW = " in alone.output
    assert "autograd error" in alone.output
    refused = run.invoke(app, ["work", "self-attention", "column-convention", "--check", "a.toml"])
    assert refused.exit_code == 2
    assert "needs one problem, got several" in refused.output


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_map_is_drawn_with_its_numbers(ending, tmp_path):
    out = tmp_path / f"map.{ending}"
    done = run.invoke(app, ["work", "three-tokens", "-o", str(out)])
    assert (done.exit_code, out.stat().st_size > 5_000) == (0, True)
    (axes,) = draw_maps(work.solve(work.read_problem("three-tokens"))).axes
    assert [text.get_text() for text in axes.texts][:3] == ["0.002", "0.000", "0.998"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    columns = draw_maps(work.solve(work.read_problem("column-convention"))).axes[0]
    assert (columns.get_xlabel(), columns.get_ylabel()) == ("query", "key")


@pytest.mark.parametrize(
    "more", [["rnn"], ["three-tokens", "rnn"], ["three-tokens", "--only", "Zz"]]
)
def test_a_picture_that_cannot_be_drawn_is_refused(more, tmp_path):
    out = tmp_path / "map.png"
    assert run.invoke(app, ["work", *more, "-o", str(out)]).exit_code == 2
    assert not out.exists()
