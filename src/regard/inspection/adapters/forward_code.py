"""Which classes compute attention, read from the code of their `forward`.

Following every module and every torch function of a model costs more than its attention. Code of
torch, regard and transformers is known not to change, so most of its modules need not be followed;
any other class may attend.
"""

import dis
import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType

from torch import nn

PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "einsum", "@"))
FUSED = frozenset(("scaled_dot_product_attention", "multi_head_attention_forward"))
INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # of transformers


def may_attend(module: nn.Module) -> bool:
    """Whether a module itself may compute attention, or is called one.

    >>> may_attend(torch.nn.Linear(1, 1)), may_attend(torch.nn.MultiheadAttention(2, 1))
    (False, True)
    """
    return _class_may_attend(type(module)) or "forward" in vars(module)


@cache
def _class_may_attend(kind: type) -> bool:
    if kind.__module__.startswith("torch.nn.modules."):
        holds_modules = kind.__module__.endswith((".container", ".transformer", ".module"))
        return holds_modules or issubclass(kind, nn.MultiheadAttention | nn.RNNBase)
    names, known = _names_of(kind), {*PRODUCTS, *FUSED, INTERFACE}
    is_named_so = "attention" in kind.__name__.lower()
    return names is None or is_named_so or not names.isdisjoint(known)


def called_names(module: nn.Module) -> frozenset[str] | None:
    """Names that `forward` of a class of transformers uses; None for other classes."""
    return None if "forward" in vars(module) else _names_of(type(module))


@cache
def _names_of(kind: type) -> frozenset[str] | None:
    if not kind.__module__.startswith("transformers."):
        return None
    names: set[str] = set()
    todo, done = [getattr(kind, "forward")], set()  # noqa: B009
    while todo:
        function = inspect.unwrap(todo.pop())
        used = {name for code in _nested(function.__code__) for name in _names_in(code)}
        names |= used
        done.add(function)
        # the eager function is what the interface calls if it is not redirected
        used -= {name for name in used if INTERFACE in used and "eager" in name}
        functions = (getattr(kind, name, function.__globals__.get(name)) for name in used)
        todo += [f for f in functions if _is_library_function(f) and inspect.unwrap(f) not in done]
    return frozenset(names)


def _is_library_function(x: object) -> bool:
    return isinstance(x, FunctionType) and x.__module__.startswith("transformers.")


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from ("@" for i in dis.get_instructions(code) if i.argrepr in ("@", "@="))
