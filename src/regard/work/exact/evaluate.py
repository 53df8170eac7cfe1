"""Numerical evaluation of exact numbers, with shared subexpressions evaluated once."""

from functools import lru_cache
from typing import Any

import mpmath
import sympy

from regard.errors import WorkError

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


def check_arguments(x: sympy.Expr) -> None:
    """Raise a WorkError where exp, tanh, sin or cos has an argument above MAX_ARGUMENT.

    >>> check_arguments(sympy.exp(10**9, evaluate=False))
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: exp: needs numbers up to 100000, got 1.0e+9
    """
    for call in x.atoms(sympy.exp, sympy.tanh, sympy.sin, sympy.cos):
        _check_argument(call)


@lru_cache(maxsize=1 << 16)
def _check_argument(call: Any) -> None:
    argument = call.args[0]
    if argument.free_symbols or argument.is_infinite:
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


@lru_cache(maxsize=1 << 16)
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
