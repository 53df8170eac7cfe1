"""Regard: a workbench for sequence models, where every number can be inspected and verified.

Names are imported on first use, so `import regard` and `regard --help` load no torch. The stub,
__init__.pyi, lists them once, for type checkers and for `__getattr__`.
"""

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
# the module that each public name is imported from; "regard" itself for its sub-packages
_HOME = {
    alias.name: node.module or ""
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
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
