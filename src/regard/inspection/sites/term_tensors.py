"""Maps functions over the tensors of masks, biases and terms, and selects one head of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from regard.ops.terms import Terms

Tree = TypeVar("Tree")


def map_tensors(x: Tree, fn: Callable[[Tensor], Tensor]) -> Tree:
    """Apply `fn` to every tensor of a mask, bias or terms, recursively.

    >>> map_tensors(rg.Padding(torch.tensor(2)) & rg.Causal(), lambda x: x + 1)
    Both(a=Padding(lengths=tensor(3), left_padding=None), b=Causal())
    """
    if isinstance(x, Tensor):
        return fn(x)  # type: ignore[return-value]
    changed = {}
    for name in getattr(type(x), "__dataclass_fields__", ()):
        old = getattr(x, name)
        if old is not None and (new := map_tensors(old, fn)) is not old:
            changed[name] = new
    return replace(x, **changed) if changed else x  # type: ignore[type-var, return-value]


def select_head(terms: Terms, head: int) -> Terms | None:
    """The terms of one head; None if a custom mask or bias cannot be split by head.

    >>> select_head(Terms(scale=1.0, sinks=torch.tensor([1.0, 2.0])), 1).sinks
    tensor([2.])
    """
    mask = terms.mask and terms.mask.head_view(head)
    bias = terms.bias and terms.bias.head_view(head)
    if (mask is None) != (terms.mask is None) or (bias is None) != (terms.bias is None):
        return None
    sinks = None if terms.sinks is None else terms.sinks[head : head + 1]
    return replace(terms, mask=mask, bias=bias, sinks=sinks)
