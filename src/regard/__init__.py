"""Regard: a workbench for sequence models, where every number can be inspected and verified.

Names are imported on first use, so `import regard` and `regard --help` load no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import (  # fmt: skip
        costs,
        data,
        decode,
        errors,
        inspection,
        models,
        nn,
        ops,
        runs,
        tasks,
        train,
        work,
    )
    from regard.costs import Cost, cost, diagram
    from regard.errors import RegardError
    from regard.inspection import (
        AttentionMonitor,
        Sight,
        Site,
        attention_rollout,
        compare_edits,
        draw,
        edit,
        gradient_norms,
        head_importance,
        load_sight,
        look,
        make_site,
        record_gates,
        what_if,
        write_report,
    )
    from regard.ops import (
        ALiBi,
        Bias,
        Buckets,
        Causal,
        Chunked,
        Documents,
        Influence,
        Local,
        Mask,
        Padding,
        RelativeKeys,
        Survey,
        Toeplitz,
        attend,
        attention_weights,
        influence,
        softargmax,
        survey,
        window,
    )
    from regard.runs import Run, load
    from regard.work import explain

__all__ = [
    "ALiBi",
    "AttentionMonitor",
    "Bias",
    "Buckets",
    "Causal",
    "Chunked",
    "Cost",
    "Documents",
    "Influence",
    "Local",
    "Mask",
    "Padding",
    "RegardError",
    "RelativeKeys",
    "Run",
    "Sight",
    "Site",
    "Survey",
    "Toeplitz",
    "attend",
    "attention_rollout",
    "attention_weights",
    "compare_edits",
    "cost",
    "costs",
    "data",
    "decode",
    "diagram",
    "draw",
    "edit",
    "errors",
    "explain",
    "gradient_norms",
    "head_importance",
    "influence",
    "inspection",
    "load",
    "load_sight",
    "look",
    "make_site",
    "models",
    "nn",
    "ops",
    "record_gates",
    "runs",
    "softargmax",
    "survey",
    "tasks",
    "train",
    "what_if",
    "window",
    "work",
    "write_report",
]

# what `rg.NAME` is, by the package that exports it
_NAMES: dict[str, tuple[str, ...]] = {
    "costs": ("Cost", "cost", "diagram"),
    "errors": ("RegardError",),
    "inspection": (
        "AttentionMonitor",
        "Sight",
        "Site",
        "attention_rollout",
        "compare_edits",
        "gradient_norms",
        "head_importance",
        "load_sight",
        "look",
        "make_site",
        "record_gates",
        "what_if",
        "write_report",
    ),
    "ops": (
        "ALiBi",
        "Bias",
        "Buckets",
        "Causal",
        "Chunked",
        "Documents",
        "Influence",
        "Local",
        "Mask",
        "Padding",
        "RelativeKeys",
        "Survey",
        "Toeplitz",
        "attend",
        "attention_weights",
        "influence",
        "softargmax",
        "survey",
        "window",
    ),
    "runs": ("Run", "load"),
    "work": ("explain",),
}
_MODULES = {  # sub-packages, and modules that serve as namespaces
    "costs": "regard.costs",
    "data": "regard.data",
    "decode": "regard.decode",
    "draw": "regard.inspection.draw",
    "edit": "regard.inspection.edit",
    "errors": "regard.errors",
    "inspection": "regard.inspection",
    "models": "regard.models",
    "nn": "regard.nn",
    "ops": "regard.ops",
    "runs": "regard.runs",
    "tasks": "regard.tasks",
    "train": "regard.train",
    "work": "regard.work",
}

_PACKAGE_OF = {name: package for package, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _PACKAGE_OF:
        return getattr(import_module(f"regard.{_PACKAGE_OF[name]}"), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_PACKAGE_OF, *_MODULES})
