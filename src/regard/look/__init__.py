"""What a model is doing: looking at every attention while fused kernels run."""

import sys
import types

import regard.look.notebook  # noqa: F401  how notebooks show what is defined here
from regard.look.alignment import Alignment, Link, align
from regard.look.answers import (
    Move,
    Shake,
    if_key_dropped,
    if_key_jittered,
    if_key_scaled,
    if_query_jittered,
    if_sharpened,
)
from regard.look.by_hand import site_of
from regard.look.cell import Cell
from regard.look.change import Change
from regard.look.cost import Cost, cost
from regard.look.cost_parts import CostPart
from regard.look.diagrams import diagram
from regard.look.edits import Edit, drop_head, drop_key, keep_heads, scale_head
from regard.look.edits_keys import jitter_key, jitter_query, scale_key
from regard.look.edits_patch import patch
from regard.look.edits_weights import flatten, harden, replace_window, temperature
from regard.look.figures import (
    draw_alignment,
    draw_gates,
    draw_heads,
    draw_lines,
    draw_map,
    draw_overlay,
    draw_strips,
    draw_token,
    draw_types,
)
from regard.look.formulas import Formula, crossing, layer_cost, writing_cost
from regard.look.gates import Gates, gates, kept
from regard.look.gradients import Flag, Gradients, ThroughTime, gradients
from regard.look.head_types import HeadRow, Thresholds
from regard.look.heads import Heads, probe
from regard.look.importance import Importance, importance
from regard.look.looking import look
from regard.look.monitor import Monitor
from regard.look.output_weights import output_weights
from regard.look.pairs import read_pair, written
from regard.look.presets import preset_or_saved
from regard.look.reading import Reader, open_reader
from regard.look.relevance import norm_weighted, relevance, value_norms
from regard.look.report import write_report
from regard.look.rollout import flow, rollout
from regard.look.sharing import Sharing, sharing
from regard.look.sight import Sight
from regard.look.site import Site
from regard.look.store import open_sight
from regard.look.svg import Diagram
from regard.look.vectors import Contexts, contexts, every_depth, neighbours, vectors
from regard.look.walk import Attribution
from regard.look.what_if import Edited, compare, what_if
from regard.look.words import in_words

__all__ = [
    "Alignment",
    "Attribution",
    "Cell",
    "Change",
    "Contexts",
    "Cost",
    "CostPart",
    "Diagram",
    "Edit",
    "Edited",
    "Flag",
    "Formula",
    "Gates",
    "Gradients",
    "HeadRow",
    "Heads",
    "Importance",
    "Link",
    "Monitor",
    "Move",
    "Reader",
    "Shake",
    "Sharing",
    "Sight",
    "Site",
    "Thresholds",
    "ThroughTime",
    "align",
    "compare",
    "contexts",
    "cost",
    "crossing",
    "diagram",
    "draw_alignment",
    "draw_gates",
    "draw_heads",
    "draw_lines",
    "draw_map",
    "draw_overlay",
    "draw_strips",
    "draw_token",
    "draw_types",
    "drop_head",
    "drop_key",
    "every_depth",
    "flatten",
    "flow",
    "gates",
    "gradients",
    "harden",
    "if_key_dropped",
    "if_key_jittered",
    "if_key_scaled",
    "if_query_jittered",
    "if_sharpened",
    "importance",
    "in_words",
    "jitter_key",
    "jitter_query",
    "keep_heads",
    "kept",
    "layer_cost",
    "look",
    "neighbours",
    "norm_weighted",
    "open_reader",
    "open_sight",
    "output_weights",
    "patch",
    "preset_or_saved",
    "probe",
    "read_pair",
    "relevance",
    "replace_window",
    "rollout",
    "scale_head",
    "scale_key",
    "sharing",
    "site_of",
    "temperature",
    "value_norms",
    "vectors",
    "what_if",
    "write_report",
    "writing_cost",
    "written",
]


class _Callable(types.ModuleType):
    """`regard.look` is this package and `rg.look(model)` a call, so the package answers to both."""

    __call__ = staticmethod(look)


sys.modules[__name__].__class__ = _Callable
