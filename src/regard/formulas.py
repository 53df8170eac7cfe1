"""Formulas, written once in plain notation, as small trees that print as text, LaTeX and MathML.

    formula = parse_formula("{0} ∘ (1 - {1}²)")  # {0}, {1} … are slots
    filled = formula.fill("d", "h_1")
    filled.text, filled.tex, filled.mathml()     # 'd ∘ (1 - h_1²)', 'd \\circ (1 - h_{1}^{2})', …

In plain notation x_1 and x_(t-1) have subscripts, x², xᵀ, x⁻¹ and x^(2i) superscripts; √(x) and
sqrt(x) are roots, [a, b; c, d] a matrix, ‖x‖ a norm, and several letters a word. Each printer is a
walk over the tree. (latex2mathml would need the LaTeX printed first and parsed once more.)
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from html import escape

from regard.errors import RegardError

_GREEK_NAMES = "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho"
_GREEK_NAMES += " sigma tau upsilon varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Phi Psi"
_GREEK = zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΦΨΩ", f"{_GREEK_NAMES} Omega".split(), strict=True)
LATEX_SIGNS = {sign: f"\\{name}" for sign, name in _GREEK} | {
    "·": "\\cdot", "×": "\\times", "∘": "\\circ", "⊗": "\\otimes", "±": "\\pm", "≈": "\\approx",
    "≠": "\\neq", "≤": "\\leq", "≥": "\\geq", "→": "\\to", "⇒": "\\Rightarrow", "∈": "\\in",
    "∂": "\\partial", "…": "\\ldots", "∞": "\\infty", "Σ": "\\sum", "√": "\\surd", "‖": "\\|",
    "½": "\\tfrac12", "¼": "\\tfrac14", "⊤": "\\top", "−": "-", "𝟏": "\\mathbf{1}", "'": "\\prime",
    "k̄": "\\bar{k}", " | ": " \\mid ", "  ": "\\quad ",
}  # fmt: skip
FUNCTIONS = ("exp", "log", "tanh", "sin", "cos", "max", "min", "lim")  # LaTeX has commands for them
OPERATORS = ("diag", "mean", "rotate", "reshape", "patches", "simulate", "softmax", "Var")
LETTER_FUNCTIONS = ("σ", "Φ", "ρ")
CONSTANTS = {"inf": "∞", "oo": "∞", "pi": "π", "Max": "max"}
_LIMITS = ("Σ", "max", "min", "lim")  # their scripts stand below and above
_RAISED, _LOWERED = ("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ", "0123456789-⊤"), ("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_CLOSING = {"(": ")", "[": "]", "‖": "‖"}
_TOKEN = re.compile(
    r"(?P<slot>\{\d+\})|(?P<number>[𝟏½¼]|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)|(?P<sign> \| |\*\*)|"
    rf"(?P<space>\s+)|(?P<raised>[{_RAISED[0]}]+)|(?P<lowered>[{_LOWERED[0]}]+)|"
    r"(?P<name>[^\W\d_Σ½¼ᵀ∂](?:\u0304|[^\W_Σ½¼ᵀ²³¹⁰⁴-⁹₀-₉]*))|(?P<other>.)",
    re.DOTALL,
)
_TEX = {
    "sub": "{0}_{{{1}}}", "lowered": "{0}_{{{1}}}", "sup": "{0}^{{{1}}}", "raised": "{0}^{{{1}}}",
    "fraction": "\\frac{{{0}}}{{{1}}}", "root": "\\sqrt{{{0}}}", "fence": "{0}{1}{2}",
    "tall": "\\left{0} {1} \\right{2}",
}  # fmt: skip
_TEX_LEAVES = {
    "product": "\\, ",
    "function": "\\{}",
    "operator": "\\operatorname{{{}}}",
    "words": "\\text{{ {} }}",
}
_MATHML = {
    "name": "<mi>{}</mi>", "operator": "<mi>{}</mi>", "number": "<mn>{}</mn>",
    "sign": "<mo>{}</mo>",
    "words": "<mtext>\u00a0{}\u00a0</mtext>", "space": "",
    "product": '<mspace width="0.17em"></mspace>',
    # with the space before an operand without brackets
    "function": '<mrow><mi>{}</mi><mspace width="0.17em"></mspace></mrow>',
    # without an explicit form browsers space brackets as operators
    "open": '<mo form="prefix" stretchy="{1}">{0}</mo>',
    "close": '<mo form="postfix" stretchy="{1}">{0}</mo>',
    "fraction": "<mfrac>{}</mfrac>", "root": "<msqrt>{}</msqrt>", "row": "<mrow>{}</mrow>",
    "sub": "<msub>{}</msub>", "sup": "<msup>{}</msup>", "both": "<msubsup>{}</msubsup>",
    "sub limits": "<munder>{}</munder>", "sup limits": "<mover>{}</mover>",
    "both limits": "<munderover>{}</munderover>",
    "matrix": '<mrow><mo fence="true">(</mo><mtable>{}</mtable><mo fence="true">)</mo></mrow>',
}  # fmt: skip
_MATHML_SIGNS = {"-": "−", "Σ": "∑", "'": "′"}


@dataclass(frozen=True)
class FormulaTree:
    """A formula: a leaf with its sign, or a row, script, fraction, root, bracket or matrix.

    >>> parse_formula("1 / √({0} + ε)").fill("v_1").tex
    '1 / \\\\sqrt{v_{1} + \\\\varepsilon}'
    """

    kind: str
    parts: tuple["FormulaTree", ...] = ()
    sign: str = ""

    def fill(self, *names: "str | FormulaTree") -> "FormulaTree":
        """The formula with a name or another formula in each slot."""
        if self.kind == "slot":
            value = names[int(self.sign[1:-1])]
            return parse_name(value) if isinstance(value, str) else value
        return FormulaTree(self.kind, tuple(part.fill(*names) for part in self.parts), self.sign)

    @property
    def text(self) -> str:
        """Plain text, in the notation that `parse_formula` reads."""
        inner = [part.text for part in self.parts]
        if self.kind in ("sub", "sup"):
            script = inner[1] if re.fullmatch(r"[\w.∞{}]+", inner[1]) else f"({inner[1]})"
            return f"{inner[0]}{'_' if self.kind == 'sub' else '^'}{script}"
        if self.kind in ("raised", "lowered"):
            small, plain = _RAISED if self.kind == "raised" else _LOWERED
            return inner[0] + inner[1].translate(str.maketrans(plain, small))
        if self.kind == "root":
            return f"√({inner[0]})" if self.parts[0].kind == "row" else f"√{inner[0]}"
        if self.kind == "fraction":
            inner = [
                f"({x})" if part.kind == "row" else x
                for part, x in zip(self.parts, inner, strict=True)
            ]
        joins = {"fraction": "/", "matrix": "; ", "cells": ", "}
        text = joins.get(self.kind, "").join(inner)
        return self.sign or (f"[{text}]" if self.kind == "matrix" else text)

    @property
    def tex(self) -> str:
        """LaTeX of the formula."""
        inner = [part.tex for part in self.parts]
        if self.kind == "matrix":
            return "\\begin{pmatrix} " + " \\\\ ".join(inner) + " \\end{pmatrix}"
        if self.kind in ("open", "close") and self.sign == "‖":
            return "\\lVert " if self.kind == "open" else " \\rVert"
        if self.kind == "name" and self.sign not in LATEX_SIGNS and len(self.sign) > 1:
            return f"\\mathrm{{{self.sign}}}"
        if self.sign:
            sign = LATEX_SIGNS.get(self.sign, self.sign)
            return _TEX_LEAVES.get(self.kind, "{}").format(sign)
        if self.kind in ("row", "cells"):
            return " & ".join(inner) if self.kind == "cells" else _join_tex(inner)
        return _TEX["tall" if self.kind == "fence" and self.is_tall else self.kind].format(*inner)

    def mathml(self, *, display: bool = False) -> str:
        """MathML of the formula, a whole `<math>` element."""
        kind = ' displaystyle="true"' if display else ""
        parts = self.parts if self.kind == "row" else (self,)
        return f"<math{kind}>{''.join(map(_mathml, parts))}</math>"

    @property
    def is_tall(self) -> bool:
        """Whether brackets around it stretch: a fraction or a matrix is inside."""
        return self.kind in ("fraction", "matrix") or any(part.is_tall for part in self.parts)


def _join_tex(parts: list[str]) -> str:
    """LaTeX in a row, with a space where a command would run into a letter."""
    text = ""
    for part in parts:
        text += f" {part}" if part[:1].isalpha() and re.search(r"\\[A-Za-z]+$", text) else part
    return text


def _mathml(node: FormulaTree) -> str:
    """MathML of a formula as one element."""
    kind, parts = node.kind, node.parts
    if node.sign == "𝟏":
        return '<mi style="font-weight:bold">1</mi>'
    if node.sign == "  ":
        return '<mspace width="1em"></mspace>'
    if node.sign:
        sign = escape(_MATHML_SIGNS.get(node.sign, node.sign.strip()), quote=False)
        return _MATHML[kind].format(sign, "false")
    if kind in ("sub", "lowered", "sup", "raised"):
        kind, base = "sub" if kind in ("sub", "lowered") else "sup", parts[0]
        if kind == "sup" and base.kind in ("sub", "lowered"):
            kind, parts = "both", (*base.parts, parts[1])
        kind += " limits" if parts[0].sign in _LIMITS else ""
    if kind == "matrix":
        rows = ("".join(f"<mtd>{_mathml(cell)}</mtd>" for cell in one.parts) for one in parts)
        return _MATHML[kind].format("".join(f"<mtr>{one}</mtr>" for one in rows))
    inner = "".join(map(_mathml, parts))
    if kind == "fence" and node.is_tall:
        inner = inner.replace('stretchy="false"', 'stretchy="true"')
    return _MATHML["row" if kind == "fence" else kind].format(inner)


def leaf(kind: str, sign: str) -> FormulaTree:
    """A leaf: a name, number, sign, function, operator, words or space."""
    return FormulaTree(kind, (), sign)


def row(*parts: FormulaTree) -> FormulaTree:
    """Formulas in a row; one alone stays as it is."""
    return parts[0] if len(parts) == 1 else FormulaTree("row", parts)


def matrix(rows: Iterable[Iterable[FormulaTree]]) -> FormulaTree:
    """A matrix in brackets."""
    return FormulaTree("matrix", tuple(FormulaTree("cells", tuple(cells)) for cells in rows))


def equation(left: FormulaTree, sign: str, right: FormulaTree) -> FormulaTree:
    """Two formulas with a sign such as = between them."""
    return row(left, leaf("space", " "), leaf("sign", sign), leaf("space", " "), right)


def parse_name(name: str) -> FormulaTree:
    r"""The name of a matrix; what follows an underscore is a subscript.

    >>> print(parse_name("W_Q").tex, parse_name("h_10").tex, parse_name("mask").tex)
    W_{Q} h_{10} \mathrm{mask}
    """
    first, _, rest = name.partition("_")
    base = leaf("number" if first[:1].isdigit() else "name", first)
    return FormulaTree("sub", (base, parse_name(rest))) if rest else base


@lru_cache(maxsize=4096)
def parse_formula(text: str, fractions: bool = False) -> FormulaTree:
    """Parse a formula in plain notation; with `fractions`, a slash without spaces is one.

    >>> parse_formula("exp(-1/2)·x_1 + 2e-10").tex
    '\\\\exp(-1/2)\\\\cdot x_{1} + 2\\\\cdot10^{-10}'
    """
    return _Parser(text, fractions=fractions).row("")


@lru_cache(maxsize=4096)
def parse_value(text: str) -> FormulaTree:
    """Parse a number or an expression as SymPy prints it: * is implied, / a fraction, exp a power.

    >>> parse_value("E*x**2/(1 + exp(-x))").tex
    '\\\\frac{e x^{2}}{1 + e^{-x}}'
    """
    return _Parser(text, is_value=True, fractions=True).row("")


class _Parser:
    """Recursive-descent parser of plain notation."""

    def __init__(self, text: str, is_value: bool = False, fractions: bool = False):
        self.text, self.is_value, self.fractions = text, is_value, fractions
        tokens = [(token.lastgroup or "", token[0]) for token in _TOKEN.finditer(text)]
        self.tokens = tokens[::-1]  # used as a stack

    def peek(self) -> str:
        return self.tokens[-1][1] if self.tokens else ""

    def row(self, *stops: str) -> FormulaTree:
        """Parse up to one of these signs; "" is the end."""
        parts: list[FormulaTree] = []
        start = 0  # of the current term
        while self.peek() not in stops:
            if not self.tokens:
                raise RegardError(f"formula: needs {' or '.join(stops)}, got none in {self.text!r}")
            kind, sign = self.tokens[-1]
            if kind != "space" and sign not in ("+", "-", ",", "=", "*", "/"):
                parts.append(self.scripted())
                continue
            self.tokens.pop()
            if sign == "/" and self.fractions and len(parts) > start:
                start += parts[start].kind == "space"
                top, bottom = row(*parts[start:]), self.scripted()
                pair = _without_brackets(top), _without_brackets(bottom)
                parts[start:] = [FormulaTree("fraction", pair)]
                start = len(parts)
            elif sign == "*":
                is_number = self.tokens[-1][0] == parts[-1].kind == "number"
                parts.append(leaf("sign", "·") if is_number else leaf("space", " "))
            elif kind == "space" and self.is_product(parts):
                parts.append(leaf("product", sign))
            else:
                parts.append(leaf("space" if kind == "space" else "sign", sign))
                start = len(parts)
        return row(*parts)

    def is_product(self, parts: list[FormulaTree]) -> bool:
        """Whether a space stands between two factors."""
        before = parts[-1] if parts else leaf("space", "")
        while before.kind in ("sub", "sup"):  # Σ_j, max_j
            before = before.parts[0]
        if before.kind in ("sign", "words", "function", "operator", "space"):
            return False
        kind, sign = self.tokens[-1] if self.tokens else ("", "")
        return kind in ("name", "number", "slot") or sign in ("(", "‖", "√", "Σ")

    def scripted(self) -> FormulaTree:
        """An atom with its subscripts and superscripts."""
        base = self.atom()
        while self.tokens:
            kind, sign = self.tokens[-1]
            if kind not in ("raised", "lowered") and sign not in ("'", "_", "^", "**"):
                break
            self.tokens.pop()
            if kind in ("raised", "lowered"):
                small, plain = _RAISED if kind == "raised" else _LOWERED
                script = parse_formula(sign.translate(str.maketrans(small, plain)))
            elif sign == "'":
                kind, script = "raised", leaf("sign", sign)
            else:
                kind, script = "sub" if sign == "_" else "sup", _without_brackets(self.atom())
                if script.kind == "words":  # indices
                    script = row(*(leaf("name", letter) for letter in script.sign))
            # tanh²(x), as SymPy's LaTeX has it
            is_call = self.is_value and base.kind == "row" and base.parts[0].kind == "function"
            scripted = FormulaTree(kind, (base.parts[0] if is_call else base, script))
            base = row(scripted, *base.parts[1:]) if is_call else scripted
        return base

    def atom(self) -> FormulaTree:
        if not self.tokens:
            raise RegardError(f"formula: needs an operand at the end, got {self.text!r}")
        kind, sign = self.tokens.pop()
        if sign in _CLOSING:
            return self.enclosed(sign)
        if sign == "√" or (sign == "sqrt" and self.peek() == "("):
            return FormulaTree("root", (_without_brackets(self.atom()),))
        if kind == "number" and "e" in sign:
            mantissa, _, power = sign.partition("e")
            power = parse_formula(str(int(power)))
            ten = FormulaTree("sup", (leaf("number", "10"), power))
            return row(leaf("number", mantissa), leaf("sign", "·"), ten)
        if kind == "name":
            return self.name(sign)
        return leaf(kind if kind in ("slot", "number") else "sign", sign)

    def name(self, sign: str) -> FormulaTree:
        if self.is_value and sign in ("E", "exp"):
            e = leaf("name", "e")
            return e if sign == "E" else FormulaTree("sup", (e, _without_brackets(self.atom())))
        sign = CONSTANTS.get(sign, sign)
        kind = "name" if len(sign) == 1 or self.is_value or sign in LATEX_SIGNS else "words"
        kind = "operator" if sign in OPERATORS else "function" if sign in FUNCTIONS else kind
        is_call = kind in ("operator", "function") or sign in LETTER_FUNCTIONS
        call = leaf(kind, sign)
        return row(call, self.atom()) if is_call and self.peek() == "(" else call

    def enclosed(self, opening: str) -> FormulaTree:
        """What stands in brackets; with semicolons in [ ] a matrix."""
        if opening != "[":
            inside = self.row(_CLOSING[opening])
        else:
            rows: list[list[FormulaTree]] = [[]]
            end = ""
            while end != "]":
                while self.peek() == " ":
                    self.tokens.pop()
                rows[-1].append(self.row(",", ";", "]"))
                if (end := self.tokens.pop()[1]) == ";":
                    rows.append([])
            if len(rows) > 1:
                return matrix(rows)
            inside = row(*rows[0])
            self.tokens.append(("other", "]"))
        close = self.tokens.pop()[1]
        if self.is_value and inside.kind == "fraction" and self.peek() != "**":
            return inside
        return FormulaTree("fence", (leaf("open", opening), inside, leaf("close", close)))


def _without_brackets(node: FormulaTree) -> FormulaTree:
    while node.kind == "fence" and node.parts[0].sign == "(":
        node = node.parts[1]
    return node
