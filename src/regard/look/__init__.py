"""What a model is doing: looking at every attention while fused kernels run."""

import sys
import types

import regard.look.notebook  # noqa: F401  how notebooks show what is defined here
from regard.look.alignment import Alignment, Link, align
from regard.look.answers import (
    OutputChange,
    NoiseEffect,
    drop_key_effect,
    jitter_key_effect,
    scale_key_effect,
    jitter_query_effect,
    scale_scores_effect,
)
from regard.look.by_hand import make_site
from regard.look.cell import WeightBreakdown
from regard.look.change import Comparison
from regard.look.cost import Cost, cost
from regard.look.cost_parts import CostPart
from regard.look.diagrams import diagram
from regard.look.edits import Edit, drop_head, drop_key, keep_heads, scale_head
from regard.look.edits_keys import jitter_key, jitter_query, scale_key
from regard.look.edits_patch import patch
from regard.look.edits_weights import uniform, hardmax, replace_window, scale_scores
from regard.look.figures import (
    draw_alignment,
    draw_gates,
    draw_heads,
    draw_lines,
    draw_map,
    draw_overlay,
    draw_statistics,
    draw_token,
    draw_head_types,
)
from regard.look.formulas import Formula, break_even_length, layer_cost, generation_cost
from regard.look.gates import Gates, record_gates, memory_retention
from regard.look.gradients import GradientFlag, GradientNorms, TimeGradients, gradient_norms
from regard.look.head_types import HeadRow, Thresholds
from regard.look.heads import HeadTable, probe_induction
from regard.look.importance import HeadImportance, head_importance
from regard.look.looking import look
from regard.look.monitor import AttentionMonitor
from regard.look.output_weights import output_projection
from regard.look.pairs import record_translation, with_output_tokens
from regard.look.presets import build_or_load_model
from regard.look.reading import TextModel, load_text_model
from regard.look.relevance import weighted_value_norms, relevance, value_norms
from regard.look.report import write_report
from regard.look.rollout import attention_flow, attention_rollout
from regard.look.sharing import SharedEncoding, shared_encoding_cost
from regard.look.sight import Sight
from regard.look.site import Site
from regard.look.store import load_sight
from regard.look.svg import Diagram
from regard.look.vectors import ContextSimilarity, compare_contexts, all_hidden_states, nearest_neighbours, hidden_states
from regard.look.walk import Attribution
from regard.look.what_if import EditLog, compare_edits, what_if
from regard.look.words import describe_head

__all__ = [
    "Alignment",
    "Attribution",
    "WeightBreakdown",
    "Comparison",
    "ContextSimilarity",
    "Cost",
    "CostPart",
    "Diagram",
    "Edit",
    "EditLog",
    "GradientFlag",
    "Formula",
    "Gates",
    "GradientNorms",
    "HeadRow",
    "HeadTable",
    "HeadImportance",
    "Link",
    "AttentionMonitor",
    "OutputChange",
    "TextModel",
    "NoiseEffect",
    "SharedEncoding",
    "Sight",
    "Site",
    "Thresholds",
    "TimeGradients",
    "align",
    "compare_edits",
    "compare_contexts",
    "cost",
    "break_even_length",
    "diagram",
    "draw_alignment",
    "draw_gates",
    "draw_heads",
    "draw_lines",
    "draw_map",
    "draw_overlay",
    "draw_statistics",
    "draw_token",
    "draw_head_types",
    "drop_head",
    "drop_key",
    "all_hidden_states",
    "uniform",
    "attention_flow",
    "record_gates",
    "gradient_norms",
    "hardmax",
    "drop_key_effect",
    "jitter_key_effect",
    "scale_key_effect",
    "jitter_query_effect",
    "scale_scores_effect",
    "head_importance",
    "describe_head",
    "jitter_key",
    "jitter_query",
    "keep_heads",
    "memory_retention",
    "layer_cost",
    "look",
    "nearest_neighbours",
    "weighted_value_norms",
    "load_text_model",
    "load_sight",
    "output_projection",
    "patch",
    "build_or_load_model",
    "probe_induction",
    "record_translation",
    "relevance",
    "replace_window",
    "attention_rollout",
    "scale_head",
    "scale_key",
    "shared_encoding_cost",
    "make_site",
    "scale_scores",
    "value_norms",
    "hidden_states",
    "what_if",
    "write_report",
    "generation_cost",
    "with_output_tokens",
]


class _Callable(types.ModuleType):
    """`regard.look` is this package and `rg.look(model)` a call, so the package answers to both."""

    __call__ = staticmethod(look)


sys.modules[__name__].__class__ = _Callable
