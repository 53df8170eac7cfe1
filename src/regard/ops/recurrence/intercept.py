"""The interception point of recurrent layers: whole sequences, and single steps."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from regard.ops.intercept import InterceptorRegistry, Scope
from regard.ops.recurrence.weights import CellWeights, State


@dataclass(frozen=True)
class SequenceCall:
    """The arguments of one recurrence; x is (*batch, time, dim)."""

    x: Tensor
    weights: CellWeights
    state: State
    lengths: Tensor | None = None
    reverse: bool = False
    gates: bool = False
    backend: Any = "auto"


@dataclass(frozen=True)
class StepCall:
    """The arguments of one step, W x + b_W already computed."""

    wx: Tensor
    state: State
    weights: CellWeights


@runtime_checkable
class RecurrentInterceptor(Protocol):
    """Receives every sequence, and every step that is computed by itself, with `proceed`.

    The reference backend also dispatches each step of a sequence; the other backends do not.
    """

    def on_sequence(self, call: SequenceCall, proceed: Callable[[SequenceCall], Any]) -> Any: ...

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], Any]) -> Any: ...


_interceptors: InterceptorRegistry[RecurrentInterceptor] = InterceptorRegistry(
    "recurrent interceptors"
)


def intercepting_recurrence(
    interceptor: RecurrentInterceptor, scope: Scope | None = None, *, other_threads: bool = True
) -> AbstractContextManager[None]:
    """Register an interceptor of recurrent layers; the arguments are those of `intercepting`."""
    return _interceptors.register(interceptor, scope, other_threads=other_threads)


def dispatch_sequence(call: SequenceCall, compute: Callable[[SequenceCall], Any]) -> Any:
    """Pass a sequence through all interceptors, then compute it."""
    return _interceptors.dispatch(call, compute, "on_sequence")


def dispatch_step(call: StepCall, compute: Callable[[StepCall], Any]) -> Any:
    """Pass a step through all interceptors, then compute it."""
    return _interceptors.dispatch(call, compute, "on_step")
