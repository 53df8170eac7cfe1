"""The door of recurrent layers: whoever looks at states and gates stands at walk or step."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.ops.intercept import InterceptorRegistry, Scope
from regard.ops.recurrence.weights import CellWeights, State


@dataclass(frozen=True)
class SequenceCall:
    """What one walk along a sequence is asked to do; x is (*batch, time, dim)."""

    x: Tensor
    weights: CellWeights
    state: State
    lengths: Tensor | None = None
    reverse: bool = False
    gates: bool = False
    backend: Any = "auto"


@dataclass(frozen=True)
class StepCall:
    """What one step is asked to do, W x + b_W being known."""

    wx: Tensor
    state: State
    weights: CellWeights


@runtime_checkable
class RecurrentInterceptor(Protocol):
    """Gets every walk, and every step that is made one by one, with the way to proceed.

    A walk by the reference makes its steps through the door too; the quick forms make none.
    """

    def on_sequence(self, call: SequenceCall, proceed: Callable[[SequenceCall], Any]) -> Any: ...

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], Any]) -> Any: ...


_attendants: InterceptorRegistry[RecurrentInterceptor] = InterceptorRegistry("recurrent attendants")


def intercepting_recurrence(
    interceptor: RecurrentInterceptor, scope: Scope | None = None, *, other_threads: bool = True
) -> AbstractContextManager[None]:
    """Let `attendant` stand at the door; the one that came last is asked first.

    With a `scope` it gets the calls of one model, also from other threads if wanted; without, all
    calls of this thread.
    """
    return _attendants.register(interceptor, scope, other_threads=other_threads)


def dispatch_sequence(call: SequenceCall, compute: Callable[[SequenceCall], Any]) -> Any:
    """Hand a walk from attendant to attendant, then compute it."""
    return _pass(call, compute, "on_sequence")


def dispatch_step(call: StepCall, compute: Callable[[StepCall], Any]) -> Any:
    """Hand a step from attendant to attendant, then compute it."""
    return _pass(call, compute, "on_step")


def _pass(call: Any, compute: Callable[[Any], Any], kind: str) -> Any:
    if torch.compiler.is_compiling():  # nobody can stand in a compiled graph; `look` says so
        return compute(call)
    proceed = compute
    for attendant in _attendants.active(call):
        proceed = _behind(getattr(attendant, kind), proceed)
    return proceed(call)


def _behind(ask: Callable[..., Any], proceed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda call: ask(call, proceed)
