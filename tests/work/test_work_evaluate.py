"""Exact numbers to digits: the same as the slow path, and fast where parts are shared."""

import time

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.work.exact import evaluate_digits, format_decimal

whole = st.integers(-4, 4).map(sympy.Integer)
numbers = st.recursive(
    whole,
    lambda parts: st.one_of(
        st.tuples(parts, parts).map(lambda ab: ab[0] + ab[1]),
        st.tuples(parts, parts).map(lambda ab: ab[0] * ab[1]),
        parts.map(lambda x: 1 / (1 + sympy.exp(-x))),
        parts.map(sympy.tanh),
        parts.map(lambda x: sympy.sqrt(x**2 + 1)),
        parts.map(sympy.cos),
    ),
    max_leaves=6,
)


def test_digits_that_are_shown_are_right():
    x = sympy.exp(sympy.Rational(1, 3))  # 1.395612425086089…
    assert [format_decimal(x, digits) for digits in (2, 6, 12)] == [
        "1.4",
        "1.39561",
        "1.39561242509",
    ]


@settings(max_examples=40, deadline=None)
@given(numbers)
def test_the_digits_are_those_of_sympy(x):
    want, got = x.evalf(40), evaluate_digits(x, 40)
    assert abs(got - want) <= abs(want) * sympy.Float("1e-38", 40)


def test_a_difference_of_near_equals_keeps_its_digits():
    near = sympy.exp(sympy.Rational(1, 10**30)) - 1
    assert abs(evaluate_digits(near, 20) * 10**30 - 1) < 1e-15
    same = sympy.sqrt(2) * sympy.sqrt(3) - sympy.sqrt(6)
    assert evaluate_digits(same, 20) == 0


def test_parts_that_are_shared_are_worked_once():
    x = sympy.Rational(1, 3)
    for _ in range(12):  # 4096 leaves, few of them distinct
        below = sympy.Pow(sympy.Add(2, x, evaluate=False), -1, evaluate=False)
        x = sympy.tanh(sympy.Add(x, below, evaluate=False), evaluate=False)
    begun = time.process_time()
    assert 0 < evaluate_digits(x, 20) < 1
    assert time.process_time() - begun < 1
