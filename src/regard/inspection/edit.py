"""Every edit of attention and activations: `rg.what_if(model, rg.edit.drop_head("*.1.*", 4))`."""

from regard.inspection.edits.activations import (
    ActivationEdit,
    add_to_activation,
    mean_activation,
    scale_activation,
    set_activation,
    zero_activation,
)
from regard.inspection.edits.base import Edit
from regard.inspection.edits.keys import drop_key, jitter_key, jitter_query, patch, scale_key
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
    "ActivationEdit", "Edit", "add_to_activation", "drop_head", "drop_key", "hardmax",
    "jitter_key", "jitter_query", "keep_heads", "mean_activation", "patch", "replace_window",
    "scale_activation", "scale_head", "scale_key", "scale_scores", "set_activation", "uniform",
    "zero_activation",
]  # fmt: skip
