"""The door of recurrent layers: whoever looks at states and gates stands at walk or step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.ops.recurrence.weights import State, Weights


@dataclass(frozen=True)
class WalkCall:
    """What one walk along a sequence is asked to do; x is (*batch, time, dim)."""

    x: Tensor
    weights: Weights
    state: State
    lengths: Tensor | None = None
    reverse: bool = False
    gates: bool = False
    form: Any = "auto"


@dataclass(frozen=True)
class StepCall:
    """What one step is asked to do, W x + b_W being known."""

    wx: Tensor
    state: State
    weights: Weights


@runtime_checkable
class Attendant(Protocol):
    """Gets every walk, and every step that is made one by one, with the way to proceed.

    A walk by the reference makes its steps through the door too; the quick forms make none.
    """

    def walk(self, call: WalkCall, proceed: Callable[[WalkCall], Any]) -> Any: ...

    def step(self, call: StepCall, proceed: Callable[[StepCall], Any]) -> Any: ...


_attendants: ContextVar[tuple[Attendant, ...]] = ContextVar("recurrent attendants", default=())


@contextmanager
def attending(attendant: Attendant) -> Iterator[None]:
    """Let `attendant` stand at the door; the one that came last is asked first."""
    token = _attendants.set((*_attendants.get(), attendant))
    try:
        yield
    finally:
        _attendants.reset(token)


def pass_walk(call: WalkCall, compute: Callable[[WalkCall], Any]) -> Any:
    """Hand a walk from attendant to attendant, then compute it."""
    return _pass(call, compute, "walk")


def pass_step(call: StepCall, compute: Callable[[StepCall], Any]) -> Any:
    """Hand a step from attendant to attendant, then compute it."""
    return _pass(call, compute, "step")


def _pass(call: Any, compute: Callable[[Any], Any], kind: str) -> Any:
    if torch.compiler.is_compiling():  # nobody can stand in a compiled graph; `look` says so
        return compute(call)
    proceed = compute
    for attendant in _attendants.get():
        proceed = _behind(getattr(attendant, kind), proceed)
    return proceed(call)


def _behind(ask: Callable[..., Any], proceed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda call: ask(call, proceed)
