"""Reading of written answers: numbers as people write them, each with its precision.

read_entry("6.7·10⁻¹", [])           # 0.67, known to two places
read_answer(step, [["0,5", "?"]], [])   # the matrix of a step; a cell that cannot be read is named
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError
from regard.work.exact import is_short_form, parse_number, shorten_repr
from regard.work.solution import Step

ROUNDED_INTEGER_DIGITS = 3  # integers with as many digits may be rounded: 149 for 148.6
ROUNDED_DIGITS = 2  # the same where the right value is no integer: 15 for 14.9
_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "⁄": "/", "$": ""}
)
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LEADING = re.compile(r"^(?:[^\W\d]\w*\s*)?(?:[=≈≃≅~]\s*)+")
_TEN = re.compile(r"(?:\s*[*xX]\s*|\s+)10\s*(?:\^|\*\*)?\s*\(?([+-]?\d{1,6})\)?$")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([ ,.'’_\u00a0\u2009\u202f])\d{3})(?:\1\d{3})*(?!\d)")
_MIXED = re.compile(r"([+-]?)(\d+)\s+(\d+\s*/\s*\d+)")
_DECIMAL = re.compile(r"[+-]?(\d+|\d*\.(\d*))(?:[eE]([+-]?\d{1,6}))?")
_LITERAL = re.compile(r"\d+\.?\d*|\.\d+|\bE\b|\be\b|\bpi\b")
_CALL = re.compile(r"\b(exp|tanh|sin|cos|log)\s*\(")
_UNREADABLE = re.compile(r"±|\+-|\+/-|\.\.\d|[\[\]{};|]|\bnan\b", re.IGNORECASE)


class AnswerEntry(NamedTuple):
    """One written entry: value, text, and the power of ten of its last digit."""

    value: sympy.Expr
    text: str
    exponent: int | None = None  # None: exact
    has_ellipsis: bool = False  # "0.33…": marked as truncated
    allowed: Any = None  # tolerance that the teacher sets, in place of the written precision

    @property
    def tolerance(self) -> Any:
        """Half a unit of the last written digit; 0 for exact entries."""
        if self.allowed is not None:
            return self.allowed
        return sympy.S.Zero if self.exponent is None else sympy.Rational(10) ** self.exponent / 2


class StudentAnswer(NamedTuple):
    """A student's matrix; blank entries are None, and so are those of `unread`, by index."""

    cells: list[list[AnswerEntry | None]]
    unread: dict[tuple[int, int], str] = {}

    @property
    def blanks(self) -> tuple[str, ...]:
        """Indices of blank entries."""
        return tuple(format_index(i, j) for i, j, x in self.entries() if x is None)

    @property
    def tolerances(self) -> list[Any]:
        """Of each entry in turn; 0 for blanks."""
        return [sympy.S.Zero if x is None else x.tolerance for *_, x in self.entries()]

    @property
    def significant_digits(self) -> int | None:
        """The most that a rounded entry has; None where all are exact."""
        rounded = [x for *_, x in self.entries() if x is not None and x.exponent is not None]
        return max((significant_digits(x.text) for x in rounded), default=None)

    def entries(self) -> Iterator[tuple[int, int, AnswerEntry | None]]:
        """Every entry with its row and column."""
        return ((i, j, x) for i, row in enumerate(self.cells) for j, x in enumerate(row))

    def allowing(self, tolerance: Any) -> "StudentAnswer":
        """The answer with one tolerance for all its entries."""
        cells = [[x and x._replace(allowed=tolerance) for x in row] for row in self.cells]
        return self._replace(cells=cells)

    def without(self, cells: dict[tuple[int, int], str]) -> "StudentAnswer":
        """The answer with these cells as unread ones, each with its reason."""
        if not cells:
            return self
        rows = [
            [None if (i, j) in cells else x for j, x in enumerate(row)]
            for i, row in enumerate(self.cells)
        ]
        return StudentAnswer(rows, self.unread | cells)


def format_index(i: int, j: int) -> str:
    """1-based index of an entry as text."""
    return f"({i + 1},{j + 1})"


def read_answer(step: Step, values: Any, symbols: Sequence[str]) -> StudentAnswer:
    """Read the answer for a step; a column may stand as a row, and a row as a column.

    An integer is exact, unless it has three digits (two, where the right value is no integer) or as
    many as a decimal in the same matrix (6 next to 3.): then it counts as rounded to units.

    >>> step = Step("N", "exp", ("E",), sympy.zeros(3, 1), "")
    >>> answer = read_answer(step, ["1.25", "?", "9.5*10^-1"], [])
    >>> [row[0] and row[0].exponent for row in answer.cells]
    [-2, None, -2]
    """
    rows = _shaped(step, values)
    cells, unread = [], dict[tuple[int, int], str]()
    for i, row in enumerate(rows):
        cells.append([])
        for j, x in enumerate(row):
            try:
                entry = read_entry(x, symbols, step.value[i, j])
            except WorkError as error:
                entry, unread[i, j] = None, str(error).removeprefix("number: ")
            cells[-1].append(entry)
    known = [x for row in cells for x in row if x is not None]
    decimals = [x for x in known if x.exponent is not None]
    exponent = min((x.exponent or 0 for x in decimals), default=0)
    digits = min((significant_digits(x.text) for x in decimals), default=ROUNDED_INTEGER_DIGITS)
    for i, row in enumerate(cells):
        for j, x in enumerate(row):
            fewest = digits if step.value[i, j].is_Integer else min(digits, ROUNDED_DIGITS)
            cells[i][j] = _rounded_integer(x, exponent, fewest)
    return StudentAnswer(cells, unread)


def _shaped(step: Step, values: Any) -> list[list[Any]]:
    """The rows of an answer, of the shape of the step."""
    rows = values if isinstance(values, list | tuple) else [values]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows] if step.value.rows == 1 else [[x] for x in rows]
    if any(not isinstance(row, list | tuple) for row in rows):
        raise WorkError(f"{step.name}: needs rows of numbers, got a row and a number side by side")
    rows, expected = [list(row) for row in rows], step.value
    shape = (len(rows), len(rows[0]) if rows else 0)
    is_regular = len({len(row) for row in rows}) == 1
    if is_regular and shape != expected.shape and 1 in shape and shape == expected.T.shape:
        rows = [list(row) for row in zip(*rows, strict=True)]  # a vector, the other way round
    elif not is_regular or shape != expected.shape:
        widths = " and ".join(sorted({str(len(row)) for row in rows})) or "0"
        hint, doubled = "", 2 * expected.cols
        if len(rows) == expected.rows and all(len(row) == doubled for row in rows):
            hint = '; try a point, 0.5: a comma separates entries (or "0,5" in quotes)'
        rule = f"{expected.rows} rows of {expected.cols} numbers"
        raise WorkError(f"{step.name}: needs {rule}, got {len(rows)} of {widths}{hint}")
    return rows


def read_entry(x: Any, symbols: Sequence[str] = (), right: Any = None) -> AnswerEntry | None:
    """Read a decimal, a percentage, a fraction or a short exact formula; None for a blank.

    Whether 1,234 has thousands or decimals follows from the size of the `right` value.

    >>> [read_entry(x).value for x in ("≈ 0,67", "6.7×10⁻¹", "2 1/2", "−1 234.5", "67 %")]
    [67/100, 67/100, 5/2, -2469/2, 67/100]
    """
    if x is None or isinstance(x, str) and x.strip() in ("", "?", "-", "–", "—", "…"):
        return None
    if isinstance(x, bool) or not isinstance(x, str | int | float | sympy.Expr):
        raise WorkError(f"number: needs one such as 3 or 0.25, got {shorten_repr(x)}")
    text = str(x).strip()
    if _UNREADABLE.search(text):
        raise WorkError(f"number: needs one value, got {shorten_repr(text)}")
    plain, has_ellipsis = re.subn(r"\s*(…|\.\.\.)$", "", _plain(text, right))
    number, percent = re.subn(r"\s*%$", "", plain)
    value = parse_number(number, symbols) if isinstance(x, str) else parse_number(x, symbols)
    if isinstance(x, str):
        _check_worked_out(number, value, text, right)
    exponent = _last_digit_exponent(number)
    if exponent is not None and "e" in number.lower():  # 1e9 does not stand for 1.4e9, nor 0e9
        digits = sympy.floor(sympy.log(abs(value), 10)) if value else None
        exponent = None if digits is None else min(exponent, int(digits) - 1)
    if percent:
        value, exponent = value / 100, (exponent or 0) - 2
    return AnswerEntry(value, text, exponent, bool(has_ellipsis) and exponent is not None)


def _plain(text: str, right: Any) -> str:
    """A number as the parser reads it: signs, powers of ten, groups, fractions, brackets."""
    text = re.sub(r"\bln\b", "log", text.translate(_SIGNS).replace("π", "pi"))
    text = re.sub(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: f"^({m[0].translate(_POWERS)})", text)
    text = _LEADING.sub("", text).strip()
    while re.fullmatch(r"\(([^()]*)\)", text):
        text = text[1:-1].strip()
    text = re.sub(r"(?i)^([+-]?)\s*(?:∞|infinity|infty|\\infty)$", r"\1inf", text)
    text = re.sub(r"(\d?)([¼-¾⅐-⅞])", _vulgar_fraction, text)
    text = _MIXED.sub(r"\1(\2 + \3)", text) if _MIXED.fullmatch(text) else text
    text = re.sub(r"^([+-]?)(10\s*(?:\^|\*\*))", r"\g<1>1.0*\2", text)  # 10^-3
    mantissa, count = _TEN.subn(r"e\1", text)
    if count and re.fullmatch(r"[+-]?[\d.,]+e[+-]?\d+", mantissa):
        text = mantissa
    text = re.sub(r"(\d)\s*√", r"\1*√", text)
    return _without_groups(text, right)


def _vulgar_fraction(match: re.Match[str]) -> str:
    value = sympy.nsimplify(unicodedata.numeric(match[2]), rational=True, tolerance=1e-6)
    return f"{match[1]} {value.p}/{value.q}".strip()


def _without_groups(text: str, right: Any) -> str:
    """A number without separators of thousands, and with a decimal point."""
    if re.fullmatch(r"[+-]?\d+,\d+(?:[eE][+-]?\d+|\s*%|\s*…|\.\.\.)?", text):
        whole, _, rest = text.partition(",")
        thousands = re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", text)
        if thousands and right is not None and right.is_number and right.is_finite:
            is_large = abs(float(right)) > abs(int(whole)) * 1000**0.5
            return whole + rest if is_large else f"{whole}.{rest}"
        return f"{whole}.{rest}"
    grouped = _GROUPED.match(text)
    rest = text[grouped.end() :] if grouped else ""
    if grouped and (grouped[1] != "." or grouped[0].count(".") > 1 or rest[:1] == ","):
        if rest and rest[0] not in ".,eE%… ":
            return text
        text = grouped[0].replace(grouped[1], "") + rest.replace(",", ".", 1)
    return text


def _check_worked_out(number: str, value: Any, text: str, right: Any) -> None:
    """Refuse a formula that was written in place of its value."""
    if not value.free_symbols and _is_call(number, value, right):
        pass
    elif value.is_Rational:
        is_value = re.fullmatch(r"[^*+/^]\S*|[+-]?[\d.]+\s*/\s*[\d.]+", number.lstrip("+-"))
        if is_value and not re.search(r"[\d)]\s*[-+*^]", number.replace("e-", "e")):
            return
        if re.fullmatch(r"[+-]?\(\d+ \+ \d+\s*/\s*\d+\)", number):  # 2 1/2
            return
    elif len(_LITERAL.findall(number)) <= len(_LITERAL.findall(str(value))) + 1:
        return
    raise WorkError(f"number: needs the value, worked out, got {shorten_repr(text)}")


def _is_call(number: str, value: Any, right: Any) -> bool:
    """Whether a function is left to work out: tanh(0.5), exp(0.5), but not sqrt(2) or e^2.

    sin, cos and log are exact where the solution shows them so.
    """
    may_be_exact = right is not None and not right.is_Rational and "." not in number
    if may_be_exact and (value == right or number.replace(" ", "") == str(right).replace(" ", "")):
        return False  # as the solution writes it
    calls = set(_CALL.findall(number))
    if calls & {"sin", "cos", "log"} and right is not None and not is_short_form(right):
        return True
    is_exact = all(x.args[0].is_Integer for x in value.atoms(sympy.exp))
    return "tanh" in calls or not is_exact or "exp" in calls and value.is_Rational


def _last_digit_exponent(text: str) -> int | None:
    """Power of ten of the last written digit; None for integers and formulas."""
    match = _DECIMAL.fullmatch(text.strip())
    if match is None or match[2] is None and match[3] is None:
        return None
    return int(match[3] or 0) - len(match[2] or "")


def significant_digits(text: str) -> int:
    """Number of significant digits."""
    digits = re.sub(r"[eE].*|[^0-9]", "", text)
    return len(digits.lstrip("0"))


def _rounded_integer(x: AnswerEntry | None, exponent: int, digits: int) -> AnswerEntry | None:
    """Precision of an integer, inferred from the decimals of the same matrix."""
    if x is None or x.exponent is not None or not re.fullmatch(r"[+-]?\d+", x.text):
        return x
    if significant_digits(x.text) >= max(1, min(digits, ROUNDED_INTEGER_DIGITS)):
        return x._replace(exponent=0)
    return x._replace(exponent=exponent) if exponent < 0 else x
