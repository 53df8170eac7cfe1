"""Gradients by hand beside those of torch's autograd, from the same numbers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.rules import Matrix
from regard.work.solution import Solution

if TYPE_CHECKING:
    from torch import Tensor

# the rules that lead forward through a cell, in torch
TORCH_RULES: dict[str, Callable[..., Any]] = {
    "product": lambda a, b: a @ b,
    "add": lambda a, b: a + b,
    "elementwise product": lambda a, b: a * b,
    "sigmoid": lambda a: a.sigmoid(),
    "tanh": lambda a: a.tanh(),
    "gated mix": lambda z, u, v: (1 - z) * u + z * v,
}


class GradientComparison(NamedTuple):
    """One gradient: what it is of, how large it is by hand, and how far autograd's is from it.

    >>> GradientComparison("W", 0.5, 0.0).max_error
    0.0
    """

    name: str
    max_abs: float
    max_error: float


def compare_with_autograd(solution: Solution) -> list[GradientComparison]:
    """Every gradient of a back-propagation by hand beside that of autograd, in float64.

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> worked = solve_bptt({"x": [[1, 0]], "W": 1, "U": "1/2"})
    >>> [one.name for one in compare_with_autograd(worked)]
    ['W', 'U', 'h_0']
    """
    if solution.family != "bptt" or any(v.free_symbols for v in solution.given.values()):
        raise WorkError(f"autograd: needs the family bptt with numbers, got {solution.family}")
    leaves = {name: _tensor(value).requires_grad_() for name, value in solution.given.items()}
    values: dict[str, Any] = dict(leaves)
    for step in solution.steps:
        if step.rule in TORCH_RULES and all(name in values for name in step.inputs):
            values[step.name] = TORCH_RULES[step.rule](*(values[name] for name in step.inputs))
    hand = solution.values()
    # J may be anything; its direct partials e_t are all that is needed of it
    direct = {n: _tensor(v) for n, v in hand.items() if n.startswith("e_") and f"h{n[1:]}" in hand}
    loss: Any = sum((e * values[f"h{name[1:]}"]).sum() for name, e in direct.items())
    loss.backward()
    found = []
    for name, leaf in leaves.items():
        if f"d{name}" in hand and leaf.grad is not None:
            own = _tensor(hand[f"d{name}"])
            apart = (own - leaf.grad).abs().max().item()
            found.append(GradientComparison(name, own.abs().max().item(), apart))
    return found


def autograd_as_text(comparisons: list[GradientComparison]) -> str:
    """The gradients in a table.

    >>> print(autograd_as_text([GradientComparison("W", 0.5, 0.0)]))
    ∂J/∂   largest by hand  autograd is off by
    W             0.500000     less than 1e-12
    """
    wide = max(5, *(len(one.name) for one in comparisons))
    lines = [f"{'∂J/∂':<{wide}}  {'largest by hand':>15}  {'autograd is off by':>18}"]
    for name, largest, apart in comparisons:
        off = "less than 1e-12" if apart < 1e-12 else f"{apart:.1e}"
        lines.append(f"{name:<{wide}}  {largest:>15.6f}  {off:>18}")
    return "\n".join(lines)


def _tensor(value: Matrix) -> "Tensor":
    import torch  # the rest of work by hand does without

    rows = value.applyfunc(lambda x: evaluate_digits(x, 20)).tolist()
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
