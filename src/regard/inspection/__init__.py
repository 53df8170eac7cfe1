"""What a model is doing: looking at every attention while fused kernels run."""

import sys
import types

import regard.inspection.notebook  # noqa: F401  how notebooks show what is defined here
from regard.inspection.attribution.importance import HeadImportance, head_importance
from regard.inspection.attribution.output_projection import output_projection
from regard.inspection.attribution.propagation import Attribution
from regard.inspection.attribution.relevance import relevance, value_norms, weighted_value_norms
from regard.inspection.attribution.rollout import attention_flow, attention_rollout
from regard.inspection.edits.base import Edit, drop_head, drop_key, keep_heads, scale_head
from regard.inspection.edits.closed_forms import (
    NoiseEffect,
    OutputChange,
    drop_key_effect,
    jitter_key_effect,
    jitter_query_effect,
    scale_key_effect,
    scale_scores_effect,
)
from regard.inspection.edits.comparison import Comparison
from regard.inspection.edits.keys import jitter_key, jitter_query, scale_key
from regard.inspection.edits.patch import patch
from regard.inspection.edits.weights import hardmax, replace_window, scale_scores, uniform
from regard.inspection.edits.what_if import EditLog, compare_edits, what_if
from regard.inspection.figures import (
    draw_alignment,
    draw_gates,
    draw_head_types,
    draw_heads,
    draw_lines,
    draw_map,
    draw_overlay,
    draw_statistics,
    draw_token,
)
from regard.inspection.gradients.norms import (
    GradientFlag,
    GradientNorms,
    TimeGradients,
    gradient_norms,
)
from regard.inspection.heads.descriptions import describe_head
from regard.inspection.heads.head_table import HeadTable, probe_induction
from regard.inspection.heads.head_types import HeadRow, Thresholds
from regard.inspection.record.gates import Gates, memory_retention, record_gates
from regard.inspection.record.hidden_states import (
    ContextSimilarity,
    all_hidden_states,
    compare_contexts,
    hidden_states,
    nearest_neighbours,
)
from regard.inspection.record.look import look
from regard.inspection.record.monitor import AttentionMonitor
from regard.inspection.record.sight import Sight
from regard.inspection.record.sight_file import load_sight
from regard.inspection.report.report import write_report
from regard.inspection.sites.breakdown import WeightBreakdown
from regard.inspection.sites.from_tensors import make_site
from regard.inspection.sites.site import Site

__all__ = [
    "Attribution",
    "WeightBreakdown",
    "Comparison",
    "ContextSimilarity",
    "Edit",
    "EditLog",
    "GradientFlag",
    "Gates",
    "GradientNorms",
    "HeadRow",
    "HeadTable",
    "HeadImportance",
    "AttentionMonitor",
    "OutputChange",
    "NoiseEffect",
    "Sight",
    "Site",
    "Thresholds",
    "TimeGradients",
    "compare_edits",
    "compare_contexts",
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
    "look",
    "nearest_neighbours",
    "weighted_value_norms",
    "load_sight",
    "output_projection",
    "patch",
    "probe_induction",
    "relevance",
    "replace_window",
    "attention_rollout",
    "scale_head",
    "scale_key",
    "make_site",
    "scale_scores",
    "value_norms",
    "hidden_states",
    "what_if",
    "write_report",
]
