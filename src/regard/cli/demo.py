"""`regard demo`: a short tour of what exists, every number computed while you watch."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    svg: Annotated[
        Path | None, typer.Option(help="Also keep what was shown, as an SVG picture.")
    ] = None,
) -> None:
    """Take a short tour: attention by hand, sharpness, masks, models, and forms that agree."""
    from rich.console import Console

    from regard.cli import tour
    from regard.errors import FileError

    if svg is not None and not svg.resolve().parent.is_dir():  # said now, not after the tour
        raise FileError(f"svg: needs a folder that exists, got {svg.parent}; try another place")
    console = Console(record=svg is not None, width=tour.WIDTH, highlight=False)
    tour.by_hand(console)
    tour.sharpness(console)
    tour.mask_zoo(console)
    tour.forms(console)
    tour.networks(console)
    if svg is not None:
        console.save_svg(str(svg), title="regard demo")
