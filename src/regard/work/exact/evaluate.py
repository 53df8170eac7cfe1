"""Exact numbers to so many digits, each part that they share worked out once."""

from functools import lru_cache
from typing import Any

import mpmath
import sympy

from regard.errors import WorkError

WORKING_DIGITS = 80  # digits that are carried inside
MAX_LOST_DIGITS = 25  # digits that a difference may lose before the slow way is taken
MAX_ARGUMENT = 100_000  # what an exponential, a tanh or a wave may be of: 1e300 would take hours

_CALLS: dict[Any, Any] = {
    sympy.exp: mpmath.exp,
    sympy.tanh: mpmath.tanh,
    sympy.log: mpmath.log,
    sympy.sin: mpmath.sin,
    sympy.cos: mpmath.cos,
    sympy.Abs: mpmath.fabs,
}


class _Unsure(Exception):
    """Digits were lost, or a number is none that is known here."""


def evaluate_digits(x: sympy.Expr, digits: int) -> Any:
    """A number to so many digits, as `x.evalf(digits)`, in time that grows with its distinct parts.

    >>> evaluate_digits(sympy.sqrt(2) / 2, 12)
    0.707106781187
    """
    # no question to sympy here: what it knows of a number it learns slowly
    if digits > WORKING_DIGITS - MAX_LOST_DIGITS:
        return x.evalf(digits)
    try:
        with mpmath.workdps(WORKING_DIGITS):
            return sympy.Float(_worked(x), digits)
    except (_Unsure, ValueError, OverflowError, ZeroDivisionError):
        return x.evalf(digits)


def check_arguments(x: sympy.Expr) -> None:
    """Raise where an exponential, a tanh or a wave is taken of a number too large to work with.

    >>> check_arguments(sympy.exp(10**9, evaluate=False))
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: exp: needs numbers up to 100000, got 1.0e+9
    """
    for part in x.atoms(sympy.exp, sympy.tanh, sympy.sin, sympy.cos):
        _need_near(part)


@lru_cache(maxsize=1 << 16)
def _need_near(part: Any) -> None:
    of = part.args[0]
    if of.free_symbols or of.is_infinite:
        return
    size = abs(evaluate_digits(of, 15))
    if size > MAX_ARGUMENT:
        name = type(part).__name__
        raise WorkError(
            f"{name}: needs numbers up to {MAX_ARGUMENT}, got {mpmath.nstr(size._to_mpmath(9), 3)}"
        )


def to_float(x: sympy.Expr) -> float:
    """A number to compare and to speak of; what still holds a symbol is refused.

    >>> to_float(sympy.exp(sympy.Integer(0)) / 4)
    0.25
    >>> to_float(sympy.Symbol("a") + 1)
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: symbols: need to be numbers for this, got a
    """
    if x.free_symbols:
        some = ", ".join(sorted(map(str, x.free_symbols)))
        raise WorkError(f"symbols: need to be numbers for this, got {some}")
    return float(evaluate_digits(x, 20))


@lru_cache(maxsize=1 << 16)
def _worked(x: Any) -> Any:
    if x.is_Rational:
        return mpmath.mpf(int(x.p)) / int(x.q)
    if x.is_Float:
        return mpmath.mpf(x._mpf_)
    if x in (sympy.pi, sympy.E):
        return mpmath.pi() if x == sympy.pi else mpmath.e()
    if not x.args:  # a symbol, infinity
        raise _Unsure
    parts = [_worked(part) for part in x.args]
    if x.is_Add:
        found = mpmath.fsum(parts)
        if abs(found) * 10**MAX_LOST_DIGITS < max(map(abs, parts)):
            raise _Unsure
        return found
    if x.is_Mul:
        return mpmath.fprod(parts)
    if isinstance(x, sympy.Pow) and (parts[0] > 0 or x.exp.is_Integer):
        return parts[0] ** (int(x.exp) if x.exp.is_Integer else parts[1])
    if type(x) in _CALLS:
        return _CALLS[type(x)](*parts)
    raise _Unsure
