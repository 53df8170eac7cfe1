"""Exact numbers: parsed from texts, evaluated to any number of digits, formatted."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import mpmath
import sympy

from regard.errors import ShapeError, WorkError

WORKING_DIGITS = 80  # internal precision
MAX_LOST_DIGITS = 25  # cancellation above which sympy's evalf takes over
MAX_ARGUMENT = 100_000  # of exp, tanh, sin and cos: 1e300 would take hours

_CALLS: dict[Any, Any] = {sympy.Abs: mpmath.fabs} | {
    getattr(sympy, name): getattr(mpmath, name) for name in ("exp", "tanh", "log", "sin", "cos")
}


class _PrecisionLost(Exception):
    """Too many digits cancelled, or the expression has no mpmath equivalent."""


def evaluate_digits(x: sympy.Expr, digits: int) -> Any:
    """`x.evalf(digits)` in time that is linear in the number of distinct subexpressions.

    >>> evaluate_digits(sympy.sqrt(2) / 2, 12)
    0.707106781187
    """
    # no x.is_... queries on the whole expression: sympy's assumptions are slow
    if digits > WORKING_DIGITS - MAX_LOST_DIGITS:
        return x.evalf(digits)
    try:
        with mpmath.workdps(WORKING_DIGITS):
            return sympy.Float(_evaluate(x), digits)
    except (_PrecisionLost, ValueError, OverflowError, ZeroDivisionError):
        return x.evalf(digits)


def is_infinity(x: Any) -> bool:
    """Whether this is inf or -inf; `x.is_infinite` would search a long sum for one.

    >>> is_infinity(-sympy.oo), is_infinity(sympy.exp(5) + 1)
    (True, False)
    """
    return x is sympy.oo or x is sympy.S.NegativeInfinity


def check_arguments(x: sympy.Expr) -> None:
    """Raise a WorkError where exp, tanh, sin or cos has an argument above MAX_ARGUMENT.

    >>> check_arguments(sympy.exp(10**9, evaluate=False))
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: exp: needs numbers up to 100000, got 1.0e+9
    """
    for call in x.atoms(sympy.exp, sympy.tanh, sympy.sin, sympy.cos):
        _check_argument(call)


@lru_cache(maxsize=1 << 13)  # numbers of some problems; entries of a server add up
def _check_argument(call: Any) -> None:
    argument = call.args[0]
    if argument.free_symbols or is_infinity(argument):
        return
    size = abs(evaluate_digits(argument, 15))
    if size > MAX_ARGUMENT:
        name, got = type(call).__name__, mpmath.nstr(size._to_mpmath(9), 3)
        raise WorkError(f"{name}: needs numbers up to {MAX_ARGUMENT}, got {got}")


def to_float(x: sympy.Expr) -> float:
    """Convert to float; raise a WorkError if symbols remain.

    >>> to_float(sympy.exp(sympy.Integer(0)) / 4)
    0.25
    >>> to_float(sympy.Symbol("a") + 1)
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: symbols: need to be numbers for this, got a
    """
    if x.free_symbols:
        symbols = ", ".join(sorted(map(str, x.free_symbols)))
        raise WorkError(f"symbols: need to be numbers for this, got {symbols}")
    return float(evaluate_digits(x, 20))


@lru_cache(maxsize=1 << 13)  # numbers of some problems; entries of a server add up
def _evaluate(x: Any) -> Any:
    if x.is_Rational:
        return mpmath.mpf(int(x.p)) / int(x.q)
    if x.is_Float:
        return mpmath.mpf(x._mpf_)
    if x in (sympy.pi, sympy.E):
        return mpmath.pi() if x == sympy.pi else mpmath.e()
    if not x.args:  # a symbol, infinity
        raise _PrecisionLost
    parts = [_evaluate(part) for part in x.args]
    if x.is_Add:
        total = mpmath.fsum(parts)
        if abs(total) * 10**MAX_LOST_DIGITS < max(map(abs, parts)):
            raise _PrecisionLost
        return total
    if x.is_Mul:
        return mpmath.fprod(parts)
    if isinstance(x, sympy.Pow) and (parts[0] > 0 or x.exp.is_Integer):
        return parts[0] ** (int(x.exp) if x.exp.is_Integer else parts[1])
    if type(x) in _CALLS:
        return _CALLS[type(x)](*parts)
    raise _PrecisionLost


MAX_CHARS = 200  # per number
MAX_POWER = 64  # product of nested exponents: 9**9**9 would never end
MAX_BITS = 3_300  # of an intermediate integer: a thousand digits
MAX_EXP_ARGUMENT = 10_000
MAX_DECIMAL_EXPONENT = 400  # 1e400
MAX_DEPTH = 30  # nested brackets
FUNCTIONS: dict[str, Any] = {
    name: getattr(sympy, name) for name in ("sqrt", "exp", "log", "sin", "cos", "tanh")
}
CONSTANTS: dict[str, Any] = {
    "pi": sympy.pi,
    "e": sympy.E,
    "E": sympy.E,
    "inf": sympy.oo,
    "oo": sympy.oo,
}
SYMBOL = re.compile(r"[A-Za-zα-ωΑ-Ω][A-Za-zα-ωΑ-Ω0-9]{0,9}(_[A-Za-z0-9]{1,9})?")
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_ROOT = re.compile(r"√\s*([0-9.]+|[A-Za-zα-ωΑ-Ω]\w*)")
_TOKEN = re.compile(rf"\s*(?:{_NUMBER}|{SYMBOL.pattern}|\*\*|[-+*/()^·]|(?P<other>\S))")


def parse_expression(text: str, symbols: Collection[str] = ()) -> sympy.Expr:
    """Parse a formula of numbers, known functions and declared symbols.

    >>> parse_expression("2*a**2 - sqrt(8)/2", ["a"]), parse_expression("1/√2")
    (2*a**2 - sqrt(2), sqrt(2)/2)
    """
    text = _ROOT.sub(r"sqrt(\1)", text.strip().replace("−", "-")).replace("√", "sqrt")
    if not text or len(text) > MAX_CHARS or text.count("(") > MAX_DEPTH:
        raise WorkError(
            f"number: needs 1 to {MAX_CHARS} characters and at most {MAX_DEPTH} brackets, got "
            f"{len(text)} and {text.count('(')}"
        )
    return _Parser(text, symbols).parse()


def has_too_many_digits(x: Any) -> bool:
    """Whether an exact number has more than about a thousand digits.

    >>> has_too_many_digits(sympy.Integer(10) ** 1000), has_too_many_digits(sympy.Rational(1, 3))
    (True, False)
    """
    return _bits(x) > MAX_BITS


def _bits(x: Any) -> int:
    return max(int(x.p).bit_length(), int(x.q).bit_length()) if x.is_Rational else 0


class _Parser:
    """Parses sums of products of powers, left to right."""

    def __init__(self, text: str, symbols: Collection[str]):
        self.text, self.symbols = text, symbols
        self.nested = 1  # largest product of nested exponents so far
        tokens = list(_TOKEN.finditer(text))
        if any(token["other"] for token in tokens):
            raise self.error()
        self.tokens = [token[0].strip() for token in reversed(tokens)]  # used as a stack

    def error(self, rule: str = "one such as 3, 0.25, 5/2 or sqrt(2)", hint: str = "") -> WorkError:
        return WorkError(f"number: needs {rule}, got {self.text!r}{hint}")

    def accept(self, *operators: str) -> str:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in operators else ""

    def parse(self) -> Any:
        result = self.sum()
        if self.tokens or result.has(sympy.nan, sympy.zoo, sympy.I, sympy.AccumBounds):
            raise self.error()
        return result

    def check_digits(self, result: Any) -> Any:
        if has_too_many_digits(result):
            raise self.error("a number of at most a thousand digits")
        return result

    def sum(self) -> Any:
        result = self.product()
        while sign := self.accept("+", "-"):
            part = self.product()
            result = self.check_digits(result + part if sign == "+" else result - part)
        return result

    def product(self) -> Any:
        result = self.signed()
        while sign := self.accept("*", "/", "·"):
            part = self.signed()
            if sign == "/" and part == 0:
                raise self.error("no division by 0")
            result = self.check_digits(result / part if sign == "/" else result * part)
        return result

    def signed(self) -> Any:
        if sign := self.accept("-", "+"):
            return -self.signed() if sign == "-" else self.signed()
        return self.power()

    def power(self) -> Any:
        outer, self.nested = self.nested, 1
        base = self.atom()
        if not self.accept("**", "^"):
            self.nested = max(outer, self.nested)
            return base
        sign = -1 if self.accept("-") else 1
        inner = self.nested
        exponent = self.atom()
        magnitude = max(abs(exponent.p), exponent.q) if exponent.is_Rational else sympy.oo
        self.nested = max(outer, inner * magnitude)
        if self.nested > MAX_POWER:
            raise self.error(f"powers up to {MAX_POWER}")
        if magnitude * _bits(base) > MAX_BITS:
            raise self.error("a number of at most a thousand digits")
        if base == 0 and sign * exponent < 0:
            raise self.error("no division by 0")
        if not exponent.is_Integer and self.is_negative(base):
            raise self.error("no root of a number below 0")
        return base ** (sign * exponent)

    def is_negative(self, x: Any) -> bool:
        if x.free_symbols or x.has(sympy.nan, sympy.zoo):
            return False  # rejected later, if at all
        if x.is_infinite:
            return x == -sympy.oo
        return bool(evaluate_digits(x, 15) < 0)

    def atom(self) -> Any:
        token = self.tokens.pop() if self.tokens else ""
        if token == "(":
            return self.bracketed()
        if token in self.symbols:  # before constants: a symbol may be called e
            return sympy.Symbol(token, real=True)
        if token in FUNCTIONS and self.accept("("):
            return self.call(token, self.bracketed())
        if token in CONSTANTS:
            return CONSTANTS[token]
        if SYMBOL.fullmatch(token):
            raise self.error(hint=f'; try symbols = ["{token}"]')
        return self.literal(token)

    def bracketed(self) -> Any:
        result = self.sum()
        if not self.accept(")"):
            raise self.error()
        return result

    def call(self, name: str, argument: Any) -> Any:
        if name == "exp" and argument.is_number and argument.is_finite:
            size = abs(float(argument.evalf(9)))
            if size > MAX_EXP_ARGUMENT:
                raise self.error(f"exponentials of at most {MAX_EXP_ARGUMENT}")
        if name == "sqrt" and self.is_negative(argument):
            raise self.error("the sqrt of 0 or more")
        if name == "log" and (argument == 0 or self.is_negative(argument)):
            raise self.error("the log of more than 0")
        return FUNCTIONS[name](argument)

    def literal(self, token: str) -> Any:
        if not token or not token[-1].isdigit() and not token.endswith("."):
            raise self.error()
        exponent = re.search(r"[eE]([+-]?\d+)$", token)
        if exponent and (len(exponent[1]) > 6 or abs(int(exponent[1])) > MAX_DECIMAL_EXPONENT):
            raise self.error(f"powers of ten up to {MAX_DECIMAL_EXPONENT}")
        return sympy.Rational(token)


MAX_ENTRIES = 1_024  # per matrix: exact arithmetic on 30×30 takes seconds


def parse_number(value: Any, symbols: Collection[str] = ()) -> sympy.Expr:
    """Parse 3, 0.25, "5/2", "1/sqrt(2)" or "-inf" exactly; names in `symbols` stay symbols.

    >>> parse_number(0.1) + parse_number("1/2"), parse_number("sqrt(8)"), parse_number("2*a", ["a"])
    (3/5, 2*sqrt(2), 2*a)
    """
    if isinstance(value, sympy.Expr):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        got = shorten_repr(value)
        raise WorkError(f"number: needs one such as 3, 0.25, 5/2 or sqrt(2), got {got}")
    try:
        return parse_expression(str(value), symbols)
    except ValueError as error:  # str() of an integer of 5,000 digits
        if isinstance(error, WorkError):
            raise
        raise WorkError(f"number: needs at most a thousand digits, got {error}") from error


def shorten_repr(value: Any) -> str:
    """repr of a value for an error message, truncated to 80 characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deep nesting, very long integers
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:78]}…"


def parse_matrix(values: Any, name: str = "matrix", symbols: Collection[str] = ()) -> Any:
    """Parse a list of rows; a flat list is one row, a number a 1×1 matrix.

    >>> parse_matrix([["1/2", 0], [-1, 2]])
    Matrix([
    [1/2, 0],
    [ -1, 2]])
    >>> parse_matrix([[1, 2], [3]], "W")
    Traceback (most recent call last):
        ...
    regard.errors.ShapeError: W: needs rows of one length, got 2 and 1 numbers
    """
    if isinstance(values, sympy.MatrixBase):
        return sympy.ImmutableMatrix(values)
    rows = values if isinstance(values, list | tuple) else [values]
    if rows and not isinstance(rows[0], list | tuple):
        rows = [rows]
    rows = [row if isinstance(row, list | tuple) else [row] for row in rows]
    lengths = list(dict.fromkeys(len(row) for row in rows))
    if len(lengths) != 1 or lengths == [0]:
        got = " and ".join(map(str, lengths))
        raise ShapeError(f"{name}: needs rows of one length, got {got} numbers")
    if len(rows) * lengths[0] > MAX_ENTRIES:
        got = f"{len(rows)}×{lengths[0]}"
        raise ShapeError(f"{name}: needs at most {MAX_ENTRIES} numbers, got {got}")
    return sympy.ImmutableMatrix([[parse_number(x, symbols) for x in row] for row in rows])


def format_decimal(x: sympy.Expr, digits: int = 6, keep_zeros: bool = False) -> str:
    """Format to significant digits; expressions with symbols are printed as they are.

    With `keep_zeros` trailing zeros stay: 2.00000 is rounded, 2 may be exact.

    >>> [format_decimal(x) for x in (sympy.sqrt(2), sympy.Rational(1, 4), -sympy.oo)]
    ['1.41421', '0.25', '-inf']
    >>> format_decimal(sympy.tanh(20), keep_zeros=True)
    '1.00000'
    """
    if x.free_symbols or is_infinity(x):
        return format_plain(x)
    number = evaluate_digits(x, digits + 5)
    if digits > 15 or number and not 1e-300 < abs(number) < 1e300:  # beyond a float
        return str(sympy.Float(number, digits))
    return f"{float(number):{'#' if keep_zeros else ''}.{digits}g}".rstrip(".")


def is_exact_in(x: sympy.Expr, digits: int) -> bool:
    """Whether a number equals its rounding to `digits` significant digits.

    >>> is_exact_in(sympy.Float("3", 50), 6), is_exact_in(sympy.sqrt(2), 6)
    (True, False)
    """
    if x.free_symbols or is_infinity(x):
        return True
    number = evaluate_digits(x, 50)
    rounded = sympy.Rational(str(sympy.Float(number, digits)))
    return bool(abs(number - rounded) <= abs(number) * sympy.Rational(1, 10**40))


def is_short_form(x: sympy.Expr) -> bool:
    """Whether a number is shown exactly: rational, a single root, or symbolic.

    >>> is_short_form(sympy.Rational(5, 2)), is_short_form(sympy.exp(1) / 3)
    (True, False)
    """
    if x.is_Float:
        return False
    if x.is_Rational or is_infinity(x) or x.free_symbols:
        return True
    max_ops = 8 if x.has(sympy.sin, sympy.cos) else 4  # a sum of two products of sines is readable
    return not x.has(sympy.exp, sympy.E, sympy.tanh) and x.count_ops() < max_ops


def format_plain(x: sympy.Expr) -> str:
    """Format a number or formula as plain text, with · and superscripts.

    >>> a = sympy.Symbol("a")
    >>> format_plain(2 * a**2 + 1), format_plain(-sympy.oo)
    ('2·a² + 1', '-inf')
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_SUPERSCRIPT_DIGITS), str(x))
    return text.replace("*", "·").replace("oo", "inf")


_SUPERSCRIPT_DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
