"""Conversion of LaTeX formulas to MathML."""

import re
from html import escape

from regard.errors import WorkError

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
_SPACES = {",": "0.17em", ":": "0.22em", ";": "0.28em", " ": "0.3em", "!": "-0.17em",
           "quad": "1em", "qquad": "2em"}  # fmt: skip
LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "epsilon": "ϵ",
    "theta": "θ", "lambda": "λ", "mu": "μ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "phi": "ϕ", "varphi": "φ", "omega": "ω", "eta": "η", "xi": "ξ", "kappa": "κ",
    "zeta": "ζ", "chi": "χ", "psi": "ψ", "nu": "ν", "iota": "ι", "upsilon": "υ",
    "Gamma": "Γ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Psi": "Ψ",
    "Delta": "Δ", "Sigma": "Σ", "Phi": "Φ", "Omega": "Ω", "infty": "∞", "ell": "ℓ", "top": "⊤",
}  # fmt: skip
OPERATORS = {
    "cdot": "·", "times": "×", "circ": "∘", "odot": "⊙", "pm": "±", "approx": "≈", "neq": "≠",
    "ne": "≠", "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "to": "→", "rightarrow": "→",
    "Rightarrow": "⇒", "in": "∈", "partial": "∂", "nabla": "∇", "mid": "|", "ldots": "…",
    "dots": "…", "cdots": "⋯", "vdots": "⋮", "surd": "√", "equiv": "≡", "sim": "∼",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩",
    "lVert": "‖", "rVert": "‖", "lvert": "|", "rvert": "|", "Vert": "‖", "vert": "|",
    "otimes": "⊗", "ominus": "⊖", "ast": "∗", "star": "⋆", "bullet": "∙", "div": "÷", "mp": "∓",
    "ll": "≪", "gg": "≫", "perp": "⊥", "parallel": "∥", "cup": "∪", "cap": "∩", "subset": "⊂",
    "forall": "∀", "exists": "∃", "neg": "¬", "vee": "∨", "implies": "⟹", "iff": "⟺",
    "leftarrow": "←", "Leftarrow": "⇐", "leftrightarrow": "↔", "dagger": "†", "colon": ":",
    "prime": "′", "oplus": "⊕", "wedge": "∧", "mapsto": "↦", "propto": "∝", "sum": "∑", "prod": "∏",
    "|": "‖", "{": "{", "}": "}", "%": "%", "_": "_", "&": "&amp;", "#": "#", "$": "$",
}  # fmt: skip
# without an explicit form browsers space brackets as operators
_BRACKETS = {"(": "prefix", "[": "prefix", ")": "postfix", "]": "postfix", "|": "postfix"}
_LARGE = ("sum", "prod", "max", "min", "lim")  # with limits above and below
_NAMED = ("exp", "log", "ln", "tanh", "cosh", "sinh", "sin", "cos", "tan", "max", "min", "det",
          "arg", "lim", "dim", "gcd")  # fmt: skip
_ACCENTS = {"hat": "^", "widehat": "^", "bar": "¯", "overline": "¯", "tilde": "~", "dot": "˙"}
_WORDS = ("mathrm", "operatorname", "text", "mathbf", "mathit", "mathsf", "textrm", "boldsymbol")
# ignored: MathML chooses style and size
_STYLES = re.compile(r"\\((display|text|script)style|(no)?limits|[bB]igg?[lrm]?)")
_FENCES = {"pmatrix": "()", "bmatrix": "[]", "vmatrix": "||", "matrix": "  ", "cases": "{ ",
           "aligned": "  ", "smallmatrix": "  "}  # fmt: skip


def tex_to_mathml(tex: str, *, display: bool = False) -> str:
    r"""Convert LaTeX to MathML; raise a WorkError for unknown commands.

    >>> tex_to_mathml(r"A_{1} = \frac{1}{2}")
    '<math><msub><mi>A</mi><mn>1</mn></msub><mo>=</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></math>'
    >>> tex_to_mathml(r"\sqrt{2")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: tex: needs a closing brace, got none in '\\sqrt{2'
    """
    inside = "".join(_Parser(tex).until(()))
    kind = ' displaystyle="true"' if display else ""
    return f"<math{kind}>{inside}</math>"


class _Parser:
    """Recursive-descent parser of a formula, one method per construct."""

    def __init__(self, tex: str):
        self.tex, self.at = tex, 0
        self.tokens = [token for token in _TOKEN.findall(tex) if not _STYLES.fullmatch(token)]

    def refused(self, needs: str, got: str) -> WorkError:
        return WorkError(f"tex: needs {needs}, got {got} in {self.tex!r}")

    def peek(self) -> str:
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        if not self.peek():
            raise self.refused("a closing brace", "none")
        self.at += 1
        return self.tokens[self.at - 1]

    def until(self, stops: tuple[str, ...]) -> list[str]:
        """Convert up to the next of these tokens, or without any up to the end."""
        parts: list[str] = []
        while self.peek() not in stops if stops else self.peek():
            parts.append(self.scripted())  # raises at the end of the formula
        return parts

    def scripted(self) -> str:
        """Convert one element with its subscript and superscript."""
        large = self.peek().removeprefix("\\") in _LARGE
        base = "<mrow></mrow>" if self.peek() in ("_", "^") else self.one()
        low = high = ""
        while self.peek() in ("_", "^", "'"):
            if (sign := self.take()) == "_":
                low = self.argument()
            else:
                high += "<mo>′</mo>" if sign == "'" else self.argument()
        kind = ("under", "over") if large else ("sub", "sup")
        if high.count("<mo>′") > 1 or (high.startswith("<mo>′") and high != "<mo>′</mo>"):
            high = f"<mrow>{high}</mrow>"
        if low and high:
            return f"<m{''.join(kind)}>{base}{low}{high}</m{''.join(kind)}>"
        tag = f"m{kind[0] if low else kind[1]}"
        return f"<{tag}>{base}{low}{high}</{tag}>" if low or high else base

    def argument(self) -> str:
        """Convert the argument of a command or script: a group, or one character."""
        token = self.peek()
        if token.isdigit() and len(token) > 1:
            self.tokens[self.at : self.at + 1] = list(token)
        return self.one()

    def group(self) -> str:
        """The text of a group, spaces included."""
        first = self.take()
        if first != "{":
            return first
        letters, depth = "", 1
        while depth:
            if self.at == len(self.tokens):
                raise self.refused("a closing brace", "none")
            token = self.tokens[self.at]
            self.at, depth = self.at + 1, depth + (token == "{") - (token == "}")
            if token not in "{}":
                letters += LETTERS.get(token[1:]) or OPERATORS.get(token[1:]) or token
        return letters

    def one(self) -> str:
        token = self.take()
        if token == "{":
            parts = self.until(("}",))
            self.take()
            return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token in "}&":
            raise self.refused("balanced braces", repr(token))
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token in _BRACKETS:
            return f'<mo form="{_BRACKETS[token]}" stretchy="false">{token}</mo>'
        return f"<mo>{'−' if token == '-' else escape(token)}</mo>"

    def command(self, name: str) -> str:
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in OPERATORS:
            return f"<mo>{OPERATORS[name]}</mo>"
        if name in _SPACES:
            return f'<mspace width="{_SPACES[name]}"></mspace>'
        if name in _NAMED:
            return f'<mrow><mi>{name}</mi><mspace width="0.17em"></mspace></mrow>'
        if name in _WORDS:
            bold = ' style="font-weight:bold"' if name in ("mathbf", "boldsymbol") else ""
            tag = "mtext" if name.startswith("text") else "mi"
            return f"<{tag}{bold}>{escape(self.group(), quote=False)}</{tag}>"
        if name in ("frac", "tfrac", "dfrac"):
            return f"<mfrac>{self.argument()}{self.argument()}</mfrac>"
        if name in _ACCENTS:
            return f"<mover accent='true'>{self.argument()}<mo>{_ACCENTS[name]}</mo></mover>"
        return self.enclosed(name)

    def enclosed(self, name: str) -> str:
        if name == "sqrt":
            if self.peek() != "[":
                return f"<msqrt>{self.argument()}</msqrt>"
            self.take()
            degree = "".join(self.until(("]",)))
            self.take()
            return f"<mroot>{self.argument()}<mrow>{degree}</mrow></mroot>"
        if name == "left":
            start, parts = self.fence(), self.until(("\\right",))
            self.take()
            return f"<mrow>{start}{''.join(parts)}{self.fence()}</mrow>"
        if name == "begin":
            return self.table(self.group())
        raise self.refused("a supported LaTeX command", f"\\{name}")

    def fence(self) -> str:
        token = self.take()
        sign = OPERATORS.get(token[1:], "") if token.startswith("\\") else token.replace(".", "")
        return f'<mo fence="true" stretchy="true">{escape(sign)}</mo>' if sign else ""

    def table(self, kind: str) -> str:
        if kind not in _FENCES:
            raise self.refused(f"one of {', '.join(_FENCES)}", kind)
        rows: list[list[str]] = [[]]
        while True:
            rows[-1].append("".join(self.until(("&", "\\\\", "\\end"))))
            end = self.take()
            if end == "\\\\":
                rows.append([])
            if end == "\\end":
                break
        if (ends := self.group()) != kind:
            raise self.refused(f"\\end{{{kind}}}", f"\\end{{{ends}}}")
        cells = [[f"<mtd>{cell}</mtd>" for cell in row] for row in rows if any(row)]
        body = "".join(f"<mtr>{''.join(row)}</mtr>" for row in cells)
        start, stop = (f'<mo fence="true">{escape(s)}</mo>' if s.strip() else ""
                       for s in _FENCES[kind])  # fmt: skip
        return f"<mrow>{start}<mtable>{body}</mtable>{stop}</mrow>"
