"""Regard: a workbench for sequence models, where every number can be seen, asked about and checked.

Names are loaded when first used, so that `regard --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.costs import *  # noqa: F403
    from regard.inspection import *  # noqa: F403
    from regard.models import quantize  # noqa: F401
    from regard.ops import *  # noqa: F403
    from regard.runs import (  # noqa: F401  # noqa: F401  # noqa: F401
        Alignment,
        Link,
        TextModel,
        align,
        build_or_load_model,
        load_pretrained,
        load_text_model,
        record_translation,
        with_output_tokens,
    )
    from regard.runs import classify_run as classify  # noqa: F401
    from regard.runs import export_run as export  # noqa: F401
    from regard.runs import generate_run as generate  # noqa: F401
    from regard.runs import transcribe_run as transcribe  # noqa: F401
    from regard.runs import translate_run as translate  # noqa: F401
    from regard.work import explain  # noqa: F401

_FOLDERS = (
    "costs",
    "data",
    "decode",
    "inspection",
    "models",
    "nn",
    "ops",
    "runs",
    "tasks",
    "train",
    "work",
)
_AT_THE_TOP = ("ops", "inspection", "costs")  # what these export is a name of rg too
_ALSO = {
    "classify": ("runs", "classify_run"),
    "explain": ("work", "explain"),
    "export": ("runs", "export_run"),
    "generate": ("runs", "generate_run"),
    "load_pretrained": ("runs", "load_pretrained"),
    "quantize": ("models", "quantize"),
    "transcribe": ("runs", "transcribe_run"),
    "translate": ("runs", "translate_run"),
} | {
    name: ("runs", name)
    for name in (
        "Alignment",
        "Link",
        "TextModel",
        "align",
        "build_or_load_model",
        "load_text_model",
        "record_translation",
        "with_output_tokens",
    )
}


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return import_module(f"regard.{name}")
    if name in _ALSO:
        folder, there = _ALSO[name]
        return getattr(import_module(f"regard.{folder}"), there)
    for folder in _AT_THE_TOP:
        package = import_module(f"regard.{folder}")
        if name in package.__all__:
            return getattr(package, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    names = (import_module(f"regard.{folder}").__all__ for folder in _AT_THE_TOP)
    return sorted({*_FOLDERS, *_ALSO, *(name for some in names for name in some)})
