"""The one door that every attention goes through: whoever looks, edits or counts stands here."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from regard.ops.terms import Terms


@dataclass(frozen=True)
class AttentionCall:
    """What one attention is asked to do."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms
    dropout: float = 0.0
    backend: str = "auto"


AttentionResult = tuple[Tensor, Tensor]  # output and log-sum-exp
Proceed = Callable[[AttentionCall], AttentionResult]
Interceptor = Callable[[AttentionCall, Proceed], AttentionResult]


@runtime_checkable
class Scope(Protocol):
    """The model whose calls an attendant gets, in whichever thread it runs."""

    def includes_call(self, call: Any) -> bool:
        """Whether a call that is made in this thread now is the model's."""
        ...

    def includes_model(self, model: nn.Module) -> bool:
        """Whether some module of `model` belongs to it."""
        ...


A = TypeVar("A")


@dataclass(eq=False)
class _Registered(Generic[A]):
    serial: int
    attendant: A
    scope: Scope | None
    is_open: bool = True

    def includes_call(self, call: Any) -> bool:
        return self.scope is None or self.scope.includes_call(call)

    def includes_model(self, model: nn.Module) -> bool:
        return self.scope is None or self.scope.includes_model(model)


class InterceptorRegistry(Generic[A]):
    """Attendants of one interception point; each is added and removed by itself, in any order.

    Without a scope an attendant gets every call of the context (thread or task) that registered it.
    With one it gets the calls of a model, also from threads that have no attendant of their own for
    it. A thread that has one is left to itself: what it runs is not for others to see or to change.
    """

    def __init__(self, name: str):
        self._serials = itertools.count()
        self._lock = threading.RLock()  # a look that is garbage collected ends in any thread
        self._everywhere: tuple[_Registered[A], ...] = ()  # replaced as a whole, so reads need none
        self._here: ContextVar[tuple[_Registered[A], ...]] = ContextVar(name, default=())

    @contextmanager
    def register(
        self, interceptor: A, scope: Scope | None = None, *, other_threads: bool = True
    ) -> Iterator[None]:
        """Register an attendant for as long as this lasts."""
        entry = _Registered(next(self._serials), interceptor, scope)
        self._here.set((*self._here.get(), entry))
        if scope is not None and other_threads:
            with self._lock:
                self._everywhere = (*self._everywhere, entry)
        try:
            yield
        finally:
            entry.is_open = False  # also for contexts that were copied from this one
            self._here.set(tuple(one for one in self._here.get() if one.is_open))
            with self._lock:
                self._everywhere = tuple(one for one in self._everywhere if one.is_open)

    def active(self, call: Any = None) -> list[A]:
        """The attendants of a call made here and now, in the order they came."""
        here, everywhere = self._here.get(), self._everywhere
        if not here and not everywhere:
            return []
        found = [entry for entry in here if entry.is_open and entry.includes_call(call)]
        if all(entry.scope is None for entry in found):
            found += [entry for entry in everywhere if entry.is_open and entry.includes_call(call)]
            found.sort(key=lambda entry: entry.serial)
        return [entry.attendant for entry in found]

    def intercepts(self, model: nn.Module) -> bool:
        """Whether an attendant waits for calls of this model, which need not be running."""
        entries = {*self._here.get(), *self._everywhere}
        return any(entry.is_open and entry.includes_model(model) for entry in entries)


_attendants: InterceptorRegistry[Interceptor] = InterceptorRegistry("attendants")


def intercepting(
    interceptor: Interceptor, scope: Scope | None = None, *, other_threads: bool = True
) -> AbstractContextManager[None]:
    """Let `attendant` stand at the door: it gets each call and the way to proceed with it.

    An attendant that looks proceeds and keeps what came back; one that edits proceeds with another
    call, or changes the answer. The one that came last is asked first. With a `scope` it gets the
    calls of one model, also from other threads if wanted; without, all calls of this thread.
    """
    return _attendants.register(interceptor, scope, other_threads=other_threads)


def is_intercepted(model: nn.Module | None = None) -> bool:
    """Whether anybody gets the calls made here, or those of a model that is about to run.

    In a compiled graph nobody can.
    """
    if torch.compiler.is_compiling():
        return False
    return bool(_attendants.active()) if model is None else _attendants.intercepts(model)


def dispatch(call: AttentionCall, compute: Proceed) -> AttentionResult:
    """Hand the call from attendant to attendant, then compute it."""
    if torch.compiler.is_compiling():  # nobody can stand in a compiled graph; `look` says so
        return compute(call)
    proceed = compute
    for attendant in _attendants.active(call):
        proceed = _behind(attendant, proceed)
    return proceed(call)


def _behind(attendant: Interceptor, proceed: Proceed) -> Proceed:
    return lambda call: attendant(call, proceed)
