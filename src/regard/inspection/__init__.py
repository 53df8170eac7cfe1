"""Inspection of models: what each attention, gate and gradient does, with fused kernels on.

`draw` and `patching` are imported on first use: looking at a model loads no matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.inspection import edit
from regard.inspection.adapters.activation_points import activation_names
from regard.inspection.attribution.head_scores import (
    HeadExample,
    HeadSearch,
    score_heads,
    search_heads,
)
from regard.inspection.attribution.importance import HeadImportance, head_importance
from regard.inspection.attribution.logits import (
    LogitAttribution,
    LogitLens,
    logit_attribution,
    logit_lens,
)
from regard.inspection.attribution.propagation import Attribution, attention_flow, attention_rollout
from regard.inspection.attribution.relevance import (
    output_projection,
    relevance,
    value_norms,
    weighted_value_norms,
)
from regard.inspection.attribution.residual_parts import ResidualStream, record_stream
from regard.inspection.attribution.score_split import (
    Composition,
    ScoreSplit,
    composition_scores,
    split_score,
)
from regard.inspection.edits.base import Edit
from regard.inspection.edits.closed_forms import (
    NoiseEffect,
    OutputChange,
    drop_key_effect,
    jitter_key_effect,
    jitter_query_effect,
    scale_key_effect,
    scale_scores_effect,
)
from regard.inspection.edits.what_if import Comparison, EditLog, compare_edits, what_if
from regard.inspection.gradients import (
    ActivationGradients,
    GradientFlag,
    GradientNorms,
    TimeGradients,
    activation_gradients,
    gradient_norms,
)
from regard.inspection.heads.descriptions import describe_head
from regard.inspection.heads.head_table import HeadRow, HeadTable, Thresholds
from regard.inspection.heads.mixer_table import MixerTable
from regard.inspection.record.activations import Activations
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
from regard.inspection.record.routers import RoutedToken, Router, Routers
from regard.inspection.record.sight import Sight
from regard.inspection.record.sight_comparison import (
    HeadDifference,
    SightComparison,
    compare_sights,
)
from regard.inspection.record.sight_file import load_sight
from regard.inspection.report.comparison_page import write_comparison
from regard.inspection.report.report import Predictions, write_report
from regard.inspection.sites.breakdown import WeightBreakdown
from regard.inspection.sites.map_tile import MapTile
from regard.inspection.sites.mixer_site import ConvolutionSite, MixerSite
from regard.inspection.sites.pyramid import MapMargins, MapPyramid
from regard.inspection.sites.site import Site, make_site

if TYPE_CHECKING:
    from regard.inspection import draw, patching
    from regard.inspection.verification import Verification, verify

__all__ = [
    "ActivationGradients", "Activations", "AttentionMonitor", "Attribution", "Comparison",
    "Composition", "ContextSimilarity", "ConvolutionSite", "Edit", "EditLog", "Gates",
    "GradientFlag", "GradientNorms", "HeadDifference", "HeadExample", "HeadImportance",
    "HeadRow", "HeadSearch", "HeadTable", "LogitAttribution", "LogitLens", "MapMargins",
    "MapPyramid", "MapTile", "MixerSite", "MixerTable", "NoiseEffect", "OutputChange",
    "Predictions", "ResidualStream", "RoutedToken", "Router", "Routers", "ScoreSplit", "Sight",
    "SightComparison", "Site", "Thresholds", "TimeGradients", "Verification", "WeightBreakdown",
    "activation_gradients", "activation_names", "all_hidden_states", "attention_flow",
    "attention_rollout", "compare_contexts", "compare_edits", "compare_sights",
    "composition_scores", "describe_head", "draw", "drop_key_effect", "edit", "gradient_norms",
    "head_importance", "hidden_states", "jitter_key_effect", "jitter_query_effect",
    "load_sight", "logit_attribution", "logit_lens", "look", "make_site", "memory_retention",
    "nearest_neighbours", "output_projection", "patching", "record_gates", "record_stream",
    "relevance", "scale_key_effect", "scale_scores_effect", "score_heads", "search_heads",
    "split_score", "value_norms", "verify", "weighted_value_norms", "what_if",
    "write_comparison", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("draw", "patching"):
        return import_module(f"regard.inspection.{name}")
    if name in ("Verification", "verify"):
        return getattr(import_module("regard.inspection.verification"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
