"""What can be changed about an attention while the model runs: heads, and which keys are seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regard.errors import ShapeError
from regard.inspection.adapters.module_tracker import check_glob
from regard.inspection.edits.call_terms import (
    KeyDropMask,
    head_mask,
    head_mask_column,
    index_mask,
    with_mask,
)
from regard.ops.indices import as_ints
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed

Indices = int | Sequence[int]  # one index or several


@dataclass(frozen=True)
class CallSite:
    """Which attention of the model is asking: its module's path, its short name, which call."""

    path: str = ""
    name: str = ""
    call: int = 0


EditFunction = Callable[[AttentionCall, Proceed, CallSite], AttentionResult]


@dataclass(frozen=True)
class Edit:
    """One change to every attention whose name or path fits the glob `site`.

    It stands at the door like any attendant; alone there, it changes every call.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> with intercepting(rg.drop_key("*", 0)):
    ...     rg.attend(q, k, v)[0]
    tensor([[3.]])
    """

    site: str
    description: str  # how it was written
    apply: EditFunction
    last_key: int = -1  # the furthest key it names: a call must have come that has it

    def __post_init__(self) -> None:
        check_glob("site", self.site)

    def __call__(self, call: AttentionCall, proceed: Proceed) -> AttentionResult:
        return self.apply(call, proceed, CallSite())

    def __repr__(self) -> str:
        return self.description


def drop_head(site: str, heads: Indices) -> Edit:
    """Some heads give nothing: their output is zero before the heads are mixed.

    out_h = 0

    >>> from regard.ops.intercept import intercepting
    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with intercepting(rg.drop_head("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 0.])
    """
    chosen = as_indices("heads", heads)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        dropped = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return out.masked_fill(dropped, 0), lse

    return Edit(site, format_call("drop_head", site, heads), act)


def keep_heads(site: str, heads: Indices) -> Edit:
    """Only some heads give anything; the others are dropped.

    out_h = 0 for every other h

    >>> from regard.ops.intercept import intercepting
    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with intercepting(rg.keep_heads("*", 1)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([0., 2.])
    """
    chosen = as_indices("heads", heads)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        kept = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return out.masked_fill(~kept, 0), lse

    return Edit(site, format_call("keep_heads", site, heads), act)


def scale_head(site: str, heads: Indices, factor: float) -> Edit:
    """Some heads give more or less: a gate on their output.

    out_h = factor · out_h

    >>> from regard.ops.intercept import intercepting
    >>> v = torch.tensor([[[1.0]], [[2.0]]])
    >>> with intercepting(rg.scale_head("*", 1, 0.5)):
    ...     rg.attend(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), v)[0].flatten()
    tensor([1., 1.])
    """
    chosen = as_indices("heads", heads)
    check_finite("factor", factor)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        scaled = head_mask_column(chosen, call)
        out, lse = proceed(call)
        return torch.where(scaled, factor * out, out), lse

    return Edit(site, format_call("scale_head", site, heads, factor), act)


def drop_key(
    site: str, keys: Indices, *, heads: Indices | None = None, queries: Indices | None = None
) -> Edit:
    """Some keys cannot be seen, by the named heads and query positions (all when not given).

    w_ij = 0 for these j;   the others grow to w_ij / (1 - Σ dropped)

    A position is the row plus the offset. A query left without a key gets zeros. One key and one
    query: a single edge of the map is cut.

    >>> from regard.ops.intercept import intercepting
    >>> q, k, v = torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> with intercepting(rg.drop_key("*", 0, queries=1)):
    ...     rg.attend(q, k, v)[0].flatten()
    tensor([2., 3.])
    """
    dropped = as_indices("keys", keys)
    chosen = None if heads is None else as_indices("heads", heads)
    asking = None if queries is None else as_indices("queries", queries)

    def act(call: AttentionCall, proceed: Proceed, place: CallSite) -> AttentionResult:
        end = call.terms.offset + call.q.shape[-2]
        shown = KeyDropMask(
            index_mask(dropped, call.k.shape[-2], call.k),
            head_mask(chosen, call),
            index_mask(range(end) if asking is None else asking, end, call.k),
        )
        return proceed(with_mask(call, shown))

    said = format_call("drop_key", site, keys, heads=heads, queries=queries)
    return Edit(site, said, act, max(dropped))


def as_indices(name: str, indices: Indices) -> tuple[int, ...]:
    """One index or several as several, counted from 0."""
    found = tuple(as_ints(name, indices))
    if not found or min(found) < 0:
        raise ShapeError(f"{name}: needs one or more, counted from 0, got {indices}")
    return found


def check_finite(name: str, value: float, least: float = -torch.inf) -> None:
    """Raise unless it is a number, and at least so much."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and abs(value) < torch.inf and value >= least):
        rule = "a finite number" if least == -torch.inf else f"a finite number from {least:g} up"
        raise ShapeError(f"{name}: needs {rule}, got {value!r}")


def format_call(name: str, *args: object, **named: object) -> str:
    """How a call is written, without what was not given.

    >>> format_call("drop_key", "*", 3, heads=None, queries=1)
    "drop_key('*', 3, queries=1)"
    """
    given = [f"{key}={value!r}" for key, value in named.items() if value is not None]
    return f"{name}({', '.join([*map(repr, args), *given])})"
