"""Regard: a workbench for sequence models, where every number can be seen, asked about and checked.

Names are loaded when first used, so that `regard --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.ops import *  # noqa: F403

_HOMES = {"ops", "nn", "models"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return import_module(f"regard.{name}")
    ops = import_module("regard.ops")
    if name in ops.__all__:
        return getattr(ops, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOMES | set(import_module("regard.ops").__all__))
