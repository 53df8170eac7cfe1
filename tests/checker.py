"""The type checker of the tests: jaxtyping for functions with shape annotations, else beartype.

jaxtyping alone checks arguments twice per call and builds all checks on import, those of a closure
again whenever it is made: a third of the time of all tests.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a fine float
with_shapes = jaxtyping.jaxtyped
_closures: set[tuple[str, str]] = set()  # checked before


def has_shapes(annotation: Any) -> bool:
    """Whether an annotation names axes; one in quotes may."""
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    parts = annotation if isinstance(annotation, list) else get_args(annotation)
    return isinstance(annotation, str) or any(map(has_shapes, parts))


def jaxtyped(fn: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """`jaxtyping.jaxtyped` as the import hook calls it; checks are built on first call."""
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if isinstance(fn, type):
        if (
            dataclasses.is_dataclass(fn)
            and getattr(fn.__init__, "__globals__", None) is not globals()
        ):
            fn.__init__ = jaxtyped(fn.__init__, typechecker=typechecker)
        return fn
    if not callable(fn) or isinstance(fn, classmethod | staticmethod):
        return with_shapes(fn, typechecker=typechecker)
    name = (fn.__module__, fn.__qualname__)
    shapes = any(map(has_shapes, fn.__annotations__.values()))
    if name in _closures and not shapes:
        return fn
    checked: list[Callable[..., Any]] = []

    @functools.wraps(fn)
    def checked_fn(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if not checked:
            checked.append(with_shapes(fn, typechecker=typechecker) if shapes else typechecker(fn))
            if "<locals>" in fn.__qualname__:
                _closures.add(name)
        return checked[0](*args, **kwargs)

    return checked_fn
