"""The views of the explorer: each module registers the queries of one view."""

from regard.web.explorer.views import (
    atlas,
    claims,
    cost,
    image,
    lesson,
    models,
    runs,
    sound,
    text,
    time,
    what_if,
    work,
)

__all__ = [
    "atlas", "claims", "cost", "image", "lesson", "models", "runs", "sound", "text", "time",
    "what_if", "work",
]  # fmt: skip
