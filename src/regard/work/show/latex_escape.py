"""LaTeX commands for Unicode symbols, and escapes of reserved characters."""

LATEX_SYMBOLS = {
    "∂": "\\partial",
    "σ": "\\sigma",
    "β": "\\beta",
    "α": "\\alpha",
    "ε": "\\varepsilon",
    "μ": "\\mu",
    "δ": "\\delta",
    "Δ": "\\Delta",
    "λ": "\\lambda",
    "ρ": "\\rho",
    "φ": "\\varphi",
    "γ": "\\gamma",
    "Σ": "\\sum",
    "√": "\\surd",
    "≈": "\\approx",
    "≤": "\\leq",
    "≥": "\\geq",
    "≠": "\\neq",
    "→": "\\to",
    "×": "\\times",
    "·": "\\cdot",
    "∘": "\\circ",
    "±": "\\pm",
    "∞": "\\infty",
    "‖": "\\|",
    "½": "\\tfrac12",
    "¼": "\\tfrac14",
    "²": "^2",
    "³": "^3",
    "⁴": "^4",
    "ᵀ": "^\\top",
    "′": "'",
    "−": "-",
    "<": "<",
    ">": ">",
    "|": "|",
    "…": "\\ldots",
}
LATEX_ESCAPES = {one: f"\\{one}" for one in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "^": "\\textasciicircum{}",
    "~": "\\textasciitilde{}",
}


def escape_latex(text: str) -> str:
    r"""Escape a sentence for LaTeX; symbols become inline formulas.

    >>> print(escape_latex("σ(-x) is 50% at h_1"))
    $\sigma$(-x) is 50\% at h\_1
    """
    marks = {sign: f"${name}$" for sign, name in LATEX_SYMBOLS.items()} | LATEX_ESCAPES
    return "".join(marks.get(letter, letter) for letter in text)
