"""Edits of attention while a model runs, their effects on its output, and closed forms."""

# each registers its edits
from regard.inspection.edits import activations, keys, mixers, weights  # noqa: F401
