"""Every edit of attention, for `rg.what_if(model, rg.edit.drop_head("encoder.1.self", 4))`."""

from regard.inspection.edits.base import Edit
from regard.inspection.edits.keys import drop_key, jitter_key, jitter_query, scale_key
from regard.inspection.edits.patch import patch
from regard.inspection.edits.weights import (
    drop_head,
    hardmax,
    keep_heads,
    replace_window,
    scale_head,
    scale_scores,
    uniform,
)

__all__ = [
    "Edit",
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
]
