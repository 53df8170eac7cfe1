"""Regard: a workbench for sequence models, where every number can be seen, asked about and checked.

Names are loaded when first used, so that `regard --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.inspection import *  # noqa: F403
    from regard.models import quantize  # noqa: F401
    from regard.ops import *  # noqa: F403
    from regard.runs import classify_run as classify  # noqa: F401
    from regard.runs import export_run as export  # noqa: F401
    from regard.runs import generate_run as generate  # noqa: F401
    from regard.runs import load_pretrained  # noqa: F401
    from regard.runs import transcribe_run as transcribe  # noqa: F401
    from regard.runs import translate_run as translate  # noqa: F401
    from regard.work import explain  # noqa: F401

_FOLDERS = ("ops", "nn", "data", "models", "decode", "train", "look", "work")
_AT_THE_TOP = ("ops", "look")  # what these export is a name of rg too
_ALSO = {
    "classify": ("train", "classify_run"),
    "explain": ("work", "explain"),
    "export": ("train", "export_run"),
    "generate": ("train", "generate_run"),
    "quantize": ("models", "quantize"),
    "specimen": ("train", "specimen"),
    "transcribe": ("train", "transcribe_run"),
    "translate": ("train", "translate_run"),
}


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return import_module(f"regard.{name}")
    if name in _ALSO:
        folder, there = _ALSO[name]
        return getattr(import_module(f"regard.{folder}"), there)
    for folder in _AT_THE_TOP:
        home = import_module(f"regard.{folder}")
        if name in home.__all__:
            return getattr(home, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = (import_module(f"regard.{folder}").__all__ for folder in _AT_THE_TOP)
    return sorted({*_FOLDERS, *_ALSO, *(name for some in names for name in some)})
