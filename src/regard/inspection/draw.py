"""Every figure, as `rg.draw.map(site, head=3)`; each returns a matplotlib Figure."""

from regard.inspection.figures.maps import draw_alignment as alignment
from regard.inspection.figures.maps import draw_image_attention as image_attention
from regard.inspection.figures.maps import draw_lines as lines
from regard.inspection.figures.maps import draw_map as map  # noqa: A004
from regard.inspection.figures.maps import draw_token as token
from regard.inspection.figures.panels import draw_comparison as comparison
from regard.inspection.figures.panels import draw_experts as experts
from regard.inspection.figures.panels import draw_gates as gates
from regard.inspection.figures.panels import draw_head_scores as head_scores
from regard.inspection.figures.panels import draw_head_types as head_types
from regard.inspection.figures.panels import draw_heads as heads
from regard.inspection.figures.panels import draw_statistics as statistics

__all__ = [
    "alignment", "comparison", "experts", "gates", "head_scores", "head_types", "heads",
    "image_attention", "lines", "map", "statistics", "token",
]  # fmt: skip
