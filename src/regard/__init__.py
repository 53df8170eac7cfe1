"""Regard: a workbench for sequence models, where every number can be inspected and verified.

Names are imported on first use, so `import regard` and `regard --help` load no torch. The stub,
__init__.pyi, lists them once, for type checkers and for `__getattr__`.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any


def _homes(file: str) -> dict[str, str]:
    """The module that each name in the stub beside a package's file is imported from."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: node.module or ""
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def lazy_package(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose stub lists its names."""
    homes = _homes(file)
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # once
        return value

    return names, get, names.copy


# "regard" itself is the home of its sub-packages
_HOME = _homes(__file__)
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("regard")
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    if _HOME[name] == "regard":
        return import_module(f"regard.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
