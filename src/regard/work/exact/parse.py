"""Numbers and formulas read from text by a grammar of our own: nothing is ever run as code."""

import re
from collections.abc import Collection
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits

MAX_CHARS = 200  # characters of one number
MAX_POWER = 64  # a power, or a power of a power: 9**9**9 would never end
MAX_BITS = 3_300  # of a whole number on the way: a thousand digits
MAX_EXP_ARGUMENT = 10_000  # what an exponential may be of
MAX_DECIMAL_EXPONENT = 400  # of 1e400
MAX_DEPTH = 30  # brackets
FUNCTIONS: dict[str, Any] = {
    "sqrt": sympy.sqrt,
    "exp": sympy.exp,
    "log": sympy.log,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tanh": sympy.tanh,
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
_TOKEN = re.compile(rf"\s*(?:({_NUMBER})|({SYMBOL.pattern})|(\*\*|[-+*/()^·]))")


def parse_expression(text: str, symbols: Collection[str] = ()) -> sympy.Expr:
    """A formula of numbers, the functions that are known, and the symbols that were declared.

    >>> parse_expression("2*a**2 - sqrt(8)/2", ["a"])
    2*a**2 - sqrt(2)
    >>> parse_expression("2**999999999")
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: number: needs powers up to 64, got '2**999999999'
    """
    text = text.strip().replace("−", "-")
    if not text or len(text) > MAX_CHARS or text.count("(") > MAX_DEPTH:
        raise WorkError(
            f"number: needs 1 to {MAX_CHARS} characters and at most {MAX_DEPTH} brackets, got "
            f"{len(text)} and {text.count('(')}"
        )
    return _Reader(text, symbols).whole()


def has_too_many_digits(x: Any) -> bool:
    """Whether an exact number has more digits than anybody writes.

    >>> has_too_many_digits(sympy.Integer(10) ** 1000), has_too_many_digits(sympy.Rational(1, 3))
    (True, False)
    """
    return x.is_Rational and max(int(x.p).bit_length(), int(x.q).bit_length()) > MAX_BITS


class _Reader:
    """Reads sums of products of powers, from left to right."""

    def __init__(self, text: str, symbols: Collection[str]):
        self.text, self.symbols = text, symbols
        self.nested = 1  # the highest power of a power so far
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            if (found := _TOKEN.match(text, at)) is None:
                raise self.refused()
            self.tokens.append(found[0].strip())
            at = found.end()
        self.tokens.reverse()  # the next one is the last

    def refused(
        self, rule: str = "one such as 3, 0.25, 5/2 or sqrt(2)", hint: str = ""
    ) -> WorkError:
        return WorkError(f"number: needs {rule}, got {self.text!r}{hint}")

    def next_is(self, *signs: str) -> str:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in signs else ""

    def whole(self) -> Any:
        found = self.sum()
        if self.tokens or found.has(sympy.nan, sympy.zoo, sympy.I, sympy.AccumBounds):
            raise self.refused()
        return found

    def short(self, found: Any) -> Any:
        if has_too_many_digits(found):
            raise self.refused("a number of at most a thousand digits")
        return found

    def sum(self) -> Any:
        found = self.product()
        while sign := self.next_is("+", "-"):
            part = self.product()
            found = self.short(found + part if sign == "+" else found - part)
        return found

    def product(self) -> Any:
        found = self.signed()
        while sign := self.next_is("*", "/", "·"):
            part = self.signed()
            if sign == "/" and part == 0:
                raise self.refused("no division by 0")
            found = self.short(found / part if sign == "/" else found * part)
        return found

    def signed(self) -> Any:
        if sign := self.next_is("-", "+"):
            return -self.signed() if sign == "-" else self.signed()
        return self.power()

    def power(self) -> Any:
        outside, self.nested = self.nested, 1
        base = self.one()
        if not self.next_is("**", "^"):
            self.nested = max(outside, self.nested)
            return base
        sign = -1 if self.next_is("-") else 1
        inside = self.nested
        high = self.one()
        if not high.is_Rational:
            raise self.refused(f"powers up to {MAX_POWER}")
        most = max(abs(high.p), high.q, 1)
        self.nested = max(outside, inside * most)
        if self.nested > MAX_POWER:
            raise self.refused(f"powers up to {MAX_POWER}")
        if (
            base.is_Rational
            and most * max(int(base.p).bit_length(), int(base.q).bit_length()) > MAX_BITS
        ):
            raise self.refused("a number of at most a thousand digits")
        if base == 0 and sign * high < 0:
            raise self.refused("no division by 0")
        if not high.is_Integer and self.is_below_0(base):
            raise self.refused("no root of a number below 0")
        return base ** (sign * high)

    def is_below_0(self, x: Any) -> bool:
        if x.free_symbols or x.has(sympy.nan, sympy.zoo):
            return False  # refused later, if at all
        if x.is_infinite:
            return x == -sympy.oo
        return bool(evaluate_digits(x, 15) < 0)

    def one(self) -> Any:
        token = self.tokens.pop() if self.tokens else ""
        if token == "(":
            return self.closed()
        if token in self.symbols:  # before the functions: a symbol may be called e
            return sympy.Symbol(token, real=True)
        if token in FUNCTIONS and self.next_is("("):
            return self.called(token, self.closed())
        if token in CONSTANTS:
            return CONSTANTS[token]
        if SYMBOL.fullmatch(token):
            raise self.refused(hint=f'; try symbols = ["{token}"]')
        return self.digits(token)

    def closed(self) -> Any:
        found = self.sum()
        if not self.next_is(")"):
            raise self.refused()
        return found

    def called(self, name: str, of: Any) -> Any:
        if (
            name == "exp"
            and of.is_number
            and of.is_finite
            and abs(float(of.evalf(9))) > MAX_EXP_ARGUMENT
        ):
            raise self.refused(f"exponentials of at most {MAX_EXP_ARGUMENT}")
        if name in ("sqrt", "log") and self.is_below_0(of) or name == "log" and of == 0:
            least = "0 or more" if name == "sqrt" else "more than 0"
            raise self.refused(f"the {name} of {least}")
        return FUNCTIONS[name](of)

    def digits(self, token: str) -> Any:
        if not token or not token[-1].isdigit() and not token.endswith("."):
            raise self.refused()
        high = re.search(r"[eE]([+-]?\d+)$", token)
        if high and (len(high[1]) > 6 or abs(int(high[1])) > MAX_DECIMAL_EXPONENT):
            raise self.refused(f"powers of ten up to {MAX_DECIMAL_EXPONENT}")
        return sympy.Rational(token)
