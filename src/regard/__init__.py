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
    from regard.costs import *  # noqa: F403  # remove with _OTHER_NAMES
    from regard.costs import Cost, cost, diagram
    from regard.errors import RegardError
    from regard.inspection import *  # noqa: F403  # remove with _OTHER_NAMES
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
    from regard.ops import *  # noqa: F403  # remove with _OTHER_NAMES
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

# ---- to be removed when all users have moved to the packages -------------------------------------
_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "costs": (
        "CostPart",
        "Diagram",
        "Formula",
        "SharedEncoding",
        "break_even_length",
        "generation_cost",
        "layer_cost",
        "shared_encoding_cost",
    ),
    "inspection": (
        "Attribution",
        "Comparison",
        "ContextSimilarity",
        "Edit",
        "EditLog",
        "Gates",
        "GradientFlag",
        "GradientNorms",
        "HeadImportance",
        "HeadRow",
        "HeadTable",
        "NoiseEffect",
        "OutputChange",
        "Thresholds",
        "TimeGradients",
        "WeightBreakdown",
        "all_hidden_states",
        "attention_flow",
        "compare_contexts",
        "describe_head",
        "drop_key_effect",
        "hidden_states",
        "jitter_key_effect",
        "jitter_query_effect",
        "memory_retention",
        "nearest_neighbours",
        "output_projection",
        "probe_induction",
        "relevance",
        "scale_key_effect",
        "scale_scores_effect",
        "value_norms",
        "weighted_value_norms",
    ),
    "inspection.edit": (
        "drop_head",
        "drop_key",
        "hardmax",
        "jitter_key",
        "jitter_query",
        "keep_heads",
        "patch",
        "replace_window",
        "scale_head",
        "scale_key",
        "scale_scores",
        "uniform",
    ),
    "ops": (
        "GRUStep",
        "GRUWeights",
        "LSTMStep",
        "LSTMWeights",
        "RNNStep",
        "RNNWeights",
        "RecurrenceResult",
        "Terms",
        "additive",
        "alibi_slopes",
        "apply_rope",
        "biases",
        "bilinear",
        "dot",
        "frame_sizes",
        "frequencies",
        "gru_step",
        "gumbel_softmax",
        "influence_window",
        "interpolate_positions",
        "layer_norm",
        "log_mel",
        "lookup_positions",
        "lstm_step",
        "masks",
        "mel_filters",
        "mel_frame_count",
        "online_cmvn",
        "patch_grid",
        "patchify",
        "recur",
        "rms_norm",
        "rnn_step",
        "scaled_dot",
        "score_moments",
        "sinusoidal",
        "sinusoidal_shift",
        "straight_through",
        "unpatchify",
    ),
    "models": ("quantize",),
    "runs": (
        "Alignment",
        "Link",
        "TextModel",
        "align",
        "build_or_load_model",
        "classify",
        "export",
        "generate",
        "load_pretrained",
        "load_text_model",
        "record_translation",
        "transcribe",
        "translate",
        "with_output_tokens",
    ),
}
_RENAMED = {
    name: f"{name}_run" for name in ("classify", "export", "generate", "transcribe", "translate")
}
# --------------------------------------------------------------------------------------------------

_PACKAGE_OF = {
    name: package
    for table in (_NAMES, _OTHER_NAMES)
    for package, names in table.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _PACKAGE_OF:
        return getattr(import_module(f"regard.{_PACKAGE_OF[name]}"), _RENAMED.get(name, name))
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_PACKAGE_OF, *_MODULES})
