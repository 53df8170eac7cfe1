"""Maps functions over the tensors of masks, biases and terms, and selects one head of them."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from regard.ops import biases, masks
from regard.ops.terms import Terms

Tree = TypeVar("Tree")


def map_tensors(x: Tree, fn: Callable[[Tensor], Tensor]) -> Tree:
    """Apply `fn` to every tensor of a mask, bias or terms, recursively.

    >>> map_tensors(rg.Padding(torch.tensor(2)) & rg.Causal(), lambda x: x + 1)
    Both(a=Padding(lengths=tensor(3), left_padding=None), b=Causal())
    """
    if isinstance(x, Tensor):
        return fn(x)  # type: ignore[return-value]
    if not is_dataclass(x) or isinstance(x, type):
        return x
    old = {f.name: getattr(x, f.name) for f in fields(x)}
    new = {name: map_tensors(value, fn) for name, value in old.items()}
    changed = {name: value for name, value in new.items() if value is not old[name]}
    return replace(x, **changed) if changed else x


def select_head(terms: Terms, head: int) -> Terms | None:
    """The terms of one head; None if a custom mask or bias cannot be split by head.

    >>> select_head(Terms(scale=1.0, sinks=torch.tensor([1.0, 2.0])), 1).sinks
    tensor([2.])
    """
    mask, bias = _cut(terms.mask, head), _cut(terms.bias, head)
    if mask is _UNKNOWN or bias is _UNKNOWN:
        return None
    sinks = terms.sinks
    return replace(
        terms, mask=mask, bias=bias, sinks=None if sinks is None else sinks[head : head + 1]
    )


_UNKNOWN = object()
_HEADLESS = (masks.Causal, masks.Local, masks.Chunked, masks.Padding, masks.Documents)


def _cut(x: Any, head: int) -> Any:
    part = slice(head, head + 1)
    match x:
        case None | biases.RelativeKeys():
            return x
        case _ if isinstance(x, _HEADLESS):
            return x
        case masks.DenseMask():
            return masks.DenseMask(_cut_dense(x.allowed, part))
        case biases.DenseBias():
            return biases.DenseBias(_cut_dense(x.values, part))
        case biases.ALiBi():
            return biases.ALiBi(x.slopes[part])
        case biases.Toeplitz():
            return biases.Toeplitz(x.table[part])
        case biases.Buckets():
            return replace(x, table=x.table[:, part])
        case masks.Both() | masks.Either() | biases.SumBias():
            a, b = _cut(x.a, head), _cut(x.b, head)
            return _UNKNOWN if a is _UNKNOWN or b is _UNKNOWN else type(x)(a, b)
        case _:
            return _UNKNOWN


def _cut_dense(x: Tensor, part: slice) -> Tensor:
    return x[..., part, :, :] if x.ndim > 2 and x.shape[-3] > 1 else x
