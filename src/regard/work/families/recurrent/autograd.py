"""Comparison of BPTT gradients with torch's autograd."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import WorkError
from regard.work.exact.evaluate import evaluate_digits
from regard.work.rules import Matrix
from regard.work.solution import Solution

if TYPE_CHECKING:
    from torch import Tensor

# forward rules of the cells, in torch
TORCH_RULES: dict[str, Callable[..., Any]] = {
    "product": lambda a, b: a @ b,
    "add": lambda a, b: a + b,
    "elementwise product": lambda a, b: a * b,
    "sigmoid": lambda a: a.sigmoid(),
    "tanh": lambda a: a.tanh(),
    "gated mix": lambda z, u, v: (1 - z) * u + z * v,
}


class GradientComparison(NamedTuple):
    """One gradient: parameter name, largest absolute entry, and largest error against autograd."""

    name: str
    max_abs: float
    max_error: float


def compare_with_autograd(solution: Solution) -> list[GradientComparison]:
    """Compare every gradient of a bptt solution with autograd in float64.

    >>> from regard.work.families.recurrent.bptt import solve_bptt
    >>> solution = solve_bptt({"x": [[1, 0]], "W": 1, "U": "1/2"})
    >>> [comparison.name for comparison in compare_with_autograd(solution)]
    ['W', 'U', 'h_0']
    """
    if solution.family != "bptt" or any(v.free_symbols for v in solution.given.values()):
        raise WorkError(f"autograd: needs the family bptt with numbers, got {solution.family}")
    leaves = {name: _tensor(value).requires_grad_() for name, value in solution.given.items()}
    values: dict[str, Any] = dict(leaves)
    for step in solution.steps:
        if step.rule in TORCH_RULES and all(name in values for name in step.inputs):
            values[step.name] = TORCH_RULES[step.rule](*(values[name] for name in step.inputs))
    by_hand = solution.values()
    # any loss J with the direct partials e_t has the same gradients
    loss: Any = sum(
        (_tensor(e) * values[f"h{name[1:]}"]).sum()
        for name, e in by_hand.items()
        if name.startswith("e_") and f"h{name[1:]}" in by_hand
    )
    loss.backward()
    comparisons = []
    for name, leaf in leaves.items():
        if f"d{name}" in by_hand and leaf.grad is not None:
            expected = _tensor(by_hand[f"d{name}"])
            error = (expected - leaf.grad).abs().max().item()
            comparisons.append(GradientComparison(name, expected.abs().max().item(), error))
    return comparisons


def autograd_as_text(comparisons: list[GradientComparison]) -> str:
    """Format the comparison as a table.

    >>> print(autograd_as_text([GradientComparison("W", 0.5, 0.0)]))
    ∂J/∂       max |value|      autograd error
    W             0.500000     less than 1e-12
    """
    width = max(5, *(len(comparison.name) for comparison in comparisons))
    lines = [f"{'∂J/∂':<{width}}  {'max |value|':>15}  {'autograd error':>18}"]
    for name, max_abs, error in comparisons:
        off = "less than 1e-12" if error < 1e-12 else f"{error:.1e}"
        lines.append(f"{name:<{width}}  {max_abs:>15.6f}  {off:>18}")
    return "\n".join(lines)


def _tensor(value: Matrix) -> "Tensor":
    import torch  # slow to import; the rest of work does not need it

    rows = value.applyfunc(lambda x: evaluate_digits(x, 20)).tolist()
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
