"""Every edit: `rg.what_if(model, rg.edit.drop_head("*.1.*", 4))`."""

from regard.inspection.edits.activations import (
    ActivationEdit,
    add_to_activation,
    drop_expert,
    force_expert,
    mean_activation,
    scale_activation,
    set_activation,
    zero_activation,
)
from regard.inspection.edits.base import Edit
from regard.inspection.edits.keys import drop_key, jitter_key, jitter_query, patch, scale_key
from regard.inspection.edits.mixers import (
    drop_write,
    freeze_decay,
    freeze_write,
    patch_state,
    reset_state,
    scale_decay,
    scale_write,
)
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
    "ActivationEdit", "Edit", "add_to_activation", "drop_expert", "drop_head", "drop_key",
    "drop_write", "force_expert", "freeze_decay", "freeze_write", "hardmax", "jitter_key",
    "jitter_query", "keep_heads", "mean_activation", "patch", "patch_state", "replace_window",
    "reset_state", "scale_activation", "scale_decay", "scale_head", "scale_key", "scale_scores",
    "scale_write", "set_activation", "uniform", "zero_activation",
]  # fmt: skip
