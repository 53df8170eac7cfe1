"""Rules of the chain rule and of attention over past states."""

from collections.abc import Mapping

import sympy

from regard.work.rules.basic import product_entry
from regard.work.rules.rule import (
    M,
    Matrix,
    MatrixFunction,
    Rule,
    elementwise,
    format_power,
    format_sum,
)

MAX_SUM_TERMS = 12

_add = elementwise(lambda *terms: sum(terms[1:], terms[0]))
_multiply = elementwise(lambda x, y: x * y)
_tanh_backward = elementwise(lambda d, y: d * (1 - y**2))
_sigmoid_backward = elementwise(lambda d, y: d * (y * (1 - y)))
_times_complement = elementwise(lambda d, y: d * (1 - y))


def _sum_of(count: int) -> Rule:
    """Sum of `count` terms; the common mistake is to leave one out."""

    def without(which: int) -> MatrixFunction:
        return lambda *inputs: _add(*(x for n, x in enumerate(inputs) if n != which))

    mistakes: dict[str, MatrixFunction] = {
        f"term {n + 1} of the sum was left out": without(n) for n in range(count)
    }
    mistakes |= {f"only term {n + 1} of the sum was taken": _select(n) for n in range(count)}
    mistakes["the mean was taken instead of the sum"] = lambda *inputs: M(_add(*inputs) / count)
    return _sum_rule(mistakes, count)


def _sum_rule(mistakes: Mapping[str, MatrixFunction], count: int = 2) -> Rule:
    text = " + ".join(f"{{{n}}}" for n in range(count))
    return Rule(_add, text, mistakes, text)


def _select(which: int) -> MatrixFunction:
    return lambda *inputs: inputs[which]


def _half_square(h: Matrix, target: Matrix) -> Matrix:
    return M([[sum((x**2 for x in h - target), sympy.S.Zero) / 2]])


GRADIENT_RULES: dict[str, Rule] = {
    **{f"sum of {n}": _sum_of(n) for n in range(2, MAX_SUM_TERMS + 1)},
    "copy": Rule(lambda a: a, "{0}"),
    "sum of entries": Rule(
        lambda a: M([[sum(a)]]),
        "sum of the entries of {0}",
        {"the mean was taken": lambda a: M([[sum(a) / len(a)]])},
        format_sum,
        "\\mathbf 1^\\top {0}",
    ),
    "ones like": Rule(
        lambda a: M.ones(*a.shape),
        "1 for each entry of {0}",
        latex="\\partial\\, \\mathbf 1^\\top {0} / \\partial {0}",
    ),
    "zeros like": Rule(lambda a: M.zeros(*a.shape), "0, of the shape of {0}", latex="0 \\cdot {0}"),
    "half square": Rule(
        _half_square,
        "½ ‖{0} - {1}‖²",
        {"the half was left out": lambda h, y: M(2 * _half_square(h, y))},
        lambda h, y: f"½·({format_sum(h - y, format_power)})",
    ),
    "subtract": Rule(
        elementwise(lambda x, y: x - y),
        "{0} - {1}",
        {"they were added": _add, "they were swapped": elementwise(lambda x, y: y - x)},
        "{0} - {1}",
    ),
    "add future gradient": _sum_rule(
        {
            "only the direct part was taken, not the gradient from later steps": _select(0),
            "the direct part was left out": _select(1),
        }
    ),
    "tanh backward": Rule(
        _tanh_backward,
        "{0} ∘ (1 - {1}²)",
        {
            "the derivative of tanh was left out": _select(0),
            "the derivative of σ was used for that of tanh": _sigmoid_backward,
            "1 - y was used for 1 - y²": _times_complement,
            "the derivative was taken at the output, not at the input": elementwise(
                lambda d, y: d * (1 - sympy.tanh(y) ** 2)
            ),
        },
        "{0}·(1 - {1:²})",
    ),
    "σ backward": Rule(
        _sigmoid_backward,
        "{0} ∘ {1} ∘ (1 - {1})",
        {
            "the derivative of σ was left out": _select(0),
            "the derivative of tanh was used for that of σ": _tanh_backward,
            "(1 - y) was left out": _multiply,
        },
        "{0}·{1}·(1 - {1})",
    ),
    "gate backward": Rule(
        _multiply, "{0} ∘ {1}", {"the other factor was left out": _select(0)}, "{0}·{1}"
    ),
    "update gate backward": Rule(
        elementwise(lambda d, new, old: d * (new - old)),
        "{0} ∘ ({1} - {2})",
        {
            "new and old were swapped": elementwise(lambda d, new, old: d * (old - new)),
            "the old state was left out": elementwise(lambda d, new, old: d * new),
        },
        "{0}·({1} - {2})",
    ),
    "keep path backward": Rule(
        _times_complement, "{0} ∘ (1 - {1})", {"z was used for 1 - z": _multiply}, "{0}·(1 - {1})"
    ),
    "cell backward": Rule(
        elementwise(lambda d, o, y: d * o * (1 - y**2)),
        "{0} ∘ {1} ∘ (1 - {2}²)",
        {
            "the derivative of tanh was left out": elementwise(lambda d, o, y: d * o),
            "the output gate was left out": elementwise(lambda d, o, y: d * (1 - y**2)),
            "the derivative of σ was used for that of tanh": elementwise(
                lambda d, o, y: d * o * (y * (1 - y))
            ),
        },
        "{0}·{1}·(1 - {2:²})",
    ),
    "add cell paths": _sum_rule(
        {
            "the path through h was left out": _select(1),
            "the path through the next cell was left out": _select(0),
        }
    ),
    "scores of the past": Rule(
        lambda keys, query, _: M(keys.T * query),
        "{0}ᵀ {1}",
        {
            "the previous state was taken as the query": lambda keys, _, past: M(keys.T * past),
            "it was divided by √d": lambda keys, query, _: M(
                keys.T * query / sympy.sqrt(keys.rows)
            ),
        },
        lambda keys, query, _: product_entry(keys.T, query),
    ),
    "add context": _sum_rule(
        {
            "the context was left out": _select(0),
            "the mean was taken": elementwise(lambda p, a: (p + a) / 2),
        }
    ),
}
