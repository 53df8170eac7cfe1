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


def lazy_package(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose stub lists its names."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("regard")]
    homes = {alias.name: node.module or "" for node in ours for alias in node.names}
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a package in it
            return import_module(f"{package}.{name}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # once
        return value

    return names, get, names.copy


__all__, _get, __dir__ = lazy_package(__name__, __file__)


def __getattr__(name: str) -> Any:
    return version("regard") if name == "__version__" else _get(name)
