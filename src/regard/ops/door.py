"""The one door that every attention goes through: whoever looks, edits or counts stands here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops.terms import Terms


@dataclass(frozen=True)
class Call:
    """What one attention is asked to do."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: Terms
    dropout: float = 0.0
    form: str = "auto"


Answer = tuple[Tensor, Tensor]  # output and log-sum-exp
Proceed = Callable[[Call], Answer]
Attendant = Callable[[Call, Proceed], Answer]

_attendants: ContextVar[tuple[Attendant, ...]] = ContextVar("attendants", default=())


@contextmanager
def attending(attendant: Attendant) -> Iterator[None]:
    """Let `attendant` stand at the door: it gets each call and the way to proceed with it.

    An attendant that looks proceeds and keeps what came back; one that edits proceeds with another
    call, or changes the answer. The one that came last is asked first.
    """
    token = _attendants.set((*_attendants.get(), attendant))
    try:
        yield
    finally:
        _attendants.reset(token)


def is_watched() -> bool:
    """Whether anybody stands at the door; in a compiled graph nobody can."""
    return not torch.compiler.is_compiling() and bool(_attendants.get())


def pass_through(call: Call, compute: Proceed) -> Answer:
    """Hand the call from attendant to attendant, then compute it."""
    if torch.compiler.is_compiling():  # nobody can stand in a compiled graph; `look` says so
        return compute(call)
    proceed = compute
    for attendant in _attendants.get():
        proceed = _behind(attendant, proceed)
    return proceed(call)


def _behind(attendant: Attendant, proceed: Proceed) -> Proceed:
    return lambda call: attendant(call, proceed)
