"""The views of the explorer: each module registers the queries of one view."""

from regard.web.explorer.views import (
    cost,
    image,
    models,
    text,
    text_compare,
    text_head,
    text_parts,
    what_if,
)

__all__ = [
    "cost",
    "image",
    "models",
    "text",
    "text_compare",
    "text_head",
    "text_parts",
    "what_if",
]
