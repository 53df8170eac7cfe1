"""Pictures for papers and screens: PNG, SVG or PDF by the suffix of the path."""

from regard.inspection.figures.lines import draw_lines
from regard.inspection.figures.maps import draw_alignment, draw_map, draw_overlay, draw_token
from regard.inspection.figures.panels import (
    draw_gates,
    draw_head_types,
    draw_heads,
    draw_statistics,
)

__all__ = [
    "draw_alignment",
    "draw_gates",
    "draw_heads",
    "draw_lines",
    "draw_map",
    "draw_overlay",
    "draw_statistics",
    "draw_token",
    "draw_head_types",
]
