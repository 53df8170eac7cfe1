"""Recursive-descent parser for numbers and formulas; no code is ever evaluated."""

import re
from collections.abc import Collection
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits

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
