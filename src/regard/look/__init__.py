"""What a model is doing: looking at every attention while fused kernels run."""

import sys
import types

import regard.look.notebook  # noqa: F401  how notebooks show what is defined here
from regard.look.by_hand import site_of
from regard.look.cell import Cell
from regard.look.gates import Gates, gates, kept
from regard.look.head_types import HeadRow, Thresholds
from regard.look.heads import Heads, probe
from regard.look.looking import look
from regard.look.sight import Sight
from regard.look.site import Site

__all__ = [
    "Cell",
    "Gates",
    "HeadRow",
    "Heads",
    "Sight",
    "Site",
    "Thresholds",
    "gates",
    "kept",
    "look",
    "probe",
    "site_of",
]


class _Callable(types.ModuleType):
    """`regard.look` is this package and `rg.look(model)` a call, so the package answers to both."""

    __call__ = staticmethod(look)


sys.modules[__name__].__class__ = _Callable
