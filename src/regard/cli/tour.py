"""`regard tour`: a short walk past what exists, every number computed while you watch."""

from pathlib import Path
from typing import Annotated

import typer


def tour(
    svg: Annotated[
        Path | None, typer.Option(help="Also keep what was shown, as an SVG picture.")
    ] = None,
) -> None:
    """Take a short tour: attention by hand, sharpness, masks, models, and forms that agree."""
    from rich.console import Console

    from regard.cli import tour_sections
    from regard.errors import FileError
    from regard.files import write_text

    if svg is not None and not svg.resolve().parent.is_dir():  # said now, not after the tour
        raise FileError(f"svg: needs a folder that exists, got {svg.parent}; try another place")
    console = Console(record=svg is not None, width=tour_sections.WIDTH, highlight=False)
    tour_sections.print_head_by_hand(console)
    tour_sections.print_sharpness(console)
    tour_sections.print_masks(console)
    tour_sections.print_backends(console)
    tour_sections.print_models(console)
    if svg is not None:
        write_text(svg, console.export_svg(title="regard tour"))
