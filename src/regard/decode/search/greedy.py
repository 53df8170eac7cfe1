"""Greedy search."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from regard.decode.constraints import TokenConstraint
from regard.decode.search.generation import collect_steps, stream
from regard.decode.search.result import DecodeResult
from regard.decode.stepper import Stepper


def greedy(
    stepper: Stepper,
    state: Any,
    first: Int[Tensor, " batch"],
    *,
    end: int,
    max_new_tokens: int,
    constraints: Sequence[TokenConstraint] = (),
) -> DecodeResult:
    """Greedy search: the most likely token at each step; arguments as in `stream`.

    y_t = argmax_y p(y | y_1 … y_{t-1}, input)

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    >>> stepper = rg.decode.make_stepper(model)
    >>> state = stepper.start(torch.tensor([[3, 4, 5], [6, 7, 8]]))
    >>> answer = greedy(stepper, state, torch.tensor([1, 1]), end=2, max_new_tokens=4)
    >>> bool((answer.lengths <= 4).all())
    True
    """
    return collect_steps(
        stream(
            stepper, state, first, end=end, max_new_tokens=max_new_tokens, constraints=constraints
        )
    )
