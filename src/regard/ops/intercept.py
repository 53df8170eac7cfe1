"""The interception point of attention: recorders, edits and counters register here.

Every attention call goes through `dispatch`. A faster path that goes around it must step aside
while its model is intercepted; `BYPASSES` lists all of them, and one test checks each.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from regard.ops.terms import Terms


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one attention call, checked."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms
    dropout: float = 0.0
    backend: str = "auto"
    # the output of queries without visible keys, 0 elsewhere; None stands for zeros
    empty_out: Tensor | None = None
    # other products that the weights enter, which see no edit; an adapter may add one later
    other_uses: list[str] = field(default_factory=list)


AttentionResult = tuple[Tensor, Tensor]  # output and log-sum-exp
Proceed = Callable[[AttentionCall], AttentionResult]
Interceptor = Callable[[AttentionCall, Proceed], AttentionResult]


@runtime_checkable
class Scope(Protocol):
    """The model whose calls an interceptor receives, in any thread."""

    def includes_call(self, call: Any) -> bool:
        """Whether a call made in this thread now belongs to the model."""
        ...

    def includes_model(self, model: nn.Module) -> bool:
        """Whether any module of `model` belongs to it."""
        ...


A = TypeVar("A")


@dataclass(eq=False)
class _Entry(Generic[A]):
    serial: int
    interceptor: A
    scope: Scope | None
    when: Callable[[], bool] | None = None
    is_open: bool = True

    def receives(self, call: Any) -> bool:
        return self.is_open and (self.scope is None or self.scope.includes_call(call))


class InterceptorRegistry(Generic[A]):
    """The interceptors of one interception point, registered and removed in any order.

    One without a scope receives every call of the context (thread or task) that registered it. One
    with a scope receives the calls of one model, also from threads that have no interceptor for
    that model; a thread that has one is isolated from other threads.
    """

    def __init__(self, name: str):
        self._serials = itertools.count()
        self._lock = threading.RLock()  # garbage collection may end an interception in any thread
        self._global: tuple[_Entry[A], ...] = ()  # replaced as a whole, so reads need no lock
        self._local: ContextVar[tuple[_Entry[A], ...]] = ContextVar(name, default=())

    @contextmanager
    def register(
        self,
        interceptor: A,
        scope: Scope | None = None,
        *,
        other_threads: bool = True,
        when: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Register an interceptor: it receives each call and `proceed`, which computes it.

        A recorder calls `proceed(call)` and keeps the result; an edit proceeds with another call or
        changes the result. The latest is called first. With a scope it receives the calls of one
        model, by default also those of other threads; without, all calls of this thread. `when`
        tells at each call of the scope whether to receive it; other calls take the fastest path.
        """
        entry = _Entry(next(self._serials), interceptor, scope, when)
        self._local.set((*self._local.get(), entry))
        if scope is not None and other_threads:
            with self._lock:
                self._global = (*self._global, entry)
        try:
            yield
        finally:
            entry.is_open = False  # also for contexts that were copied from this one
            self._local.set(tuple(e for e in self._local.get() if e.is_open))
            with self._lock:
                self._global = tuple(e for e in self._global if e.is_open)

    def active(self, call: Any = None) -> list[A]:
        """The interceptors of a call made in this context, in order of registration."""
        local, global_ = self._local.get(), self._global
        if not local and not global_:
            return []
        entries = [e for e in local if e.receives(call)]
        if all(e.scope is None for e in entries):
            entries += [e for e in global_ if e.receives(call)]
            entries.sort(key=lambda e: e.serial)
        return [e.interceptor for e in entries if e.when is None or e.when()]

    def reaches(self, interceptor: A, model: nn.Module) -> bool:
        """Whether an interceptor that is registered for a model receives its calls in this thread.

        It does not in another thread that has another interceptor for the model.
        """
        local = [e for e in self._local.get() if e.is_open and e.scope is not None]
        if any(e.interceptor is interceptor for e in local):
            return True
        return not any(e.scope is not None and e.scope.includes_model(model) for e in local)

    def intercepts(self, model: nn.Module) -> bool:
        """Whether calls of this model would be intercepted; it need not be running."""
        entries = (e for e in (*self._local.get(), *self._global) if e.is_open)
        return any(e.scope is None or e.scope.includes_model(model) for e in entries)

    def dispatch(self, call: Any, compute: Callable[[Any], Any], method: str | None = None) -> Any:
        """Pass a call through all interceptors, the latest first, then compute it.

        `method` names the method of an interceptor to call; None calls the interceptor itself.
        """
        if torch.compiler.is_compiling():  # a compiled graph cannot be intercepted; `look` raises
            return compute(call)
        proceed = compute
        for interceptor in self.active(call):
            handler: Any = interceptor if method is None else getattr(interceptor, method)
            proceed = lambda call, run=handler, inner=proceed: run(call, inner)  # noqa: E731
        return proceed(call)


_interceptors: InterceptorRegistry[Interceptor] = InterceptorRegistry("interceptors")


intercepting, reaches = _interceptors.register, _interceptors.reaches
# passes an attention call through all interceptors, then computes it
dispatch: Callable[[AttentionCall, Proceed], AttentionResult] = _interceptors.dispatch


def is_intercepted(model: nn.Module | None = None) -> bool:
    """Whether calls made here, or those of a model that is about to run, are intercepted.

    Always False in a compiled graph.
    """
    if torch.compiler.is_compiling():
        return False
    return bool(_interceptors.active()) if model is None else _interceptors.intercepts(model)


class Bypass(NamedTuple):
    """A faster path around the interception point, and the function where it steps aside."""

    name: str
    module: str
    function: str
    steps_aside: str  # what takes over while the model is intercepted


BYPASSES = (
    Bypass("sdpa", "regard.ops.attend.op", "attend", "the dispatched call of attend"),
    Bypass("fused qkv", "regard.nn.attention", "_are_plain", "three calls of nn.Linear"),
    Bypass(
        "transformers sdpa",
        "regard.inspection.adapters.transformers_attention",
        "regard_attention_forward",
        "the dispatched call of attend",
    ),
    Bypass("cpu decoder", "regard.decode.cpu", "supports_cpu_decoder", "the model"),
    Bypass("cpu decoder step", "regard.decode.stepper", "TranslatorStepper.step", "the model"),
    Bypass("gpu engine", "regard.decode.gpu.engine", "CudaGraphEngine.ready", "the model"),
    Bypass("gpu weights", "regard.decode.gpu.engine", "_weight_addresses", "the model"),
    Bypass(
        "gpu engine start", "regard.decode.language_stepper", "LanguageStepper.start", "the model"
    ),
    Bypass(
        "gpu engine step", "regard.decode.language_stepper", "LanguageStepper.step", "the model"
    ),
)
