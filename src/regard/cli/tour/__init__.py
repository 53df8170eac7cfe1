"""`regard tour`: a short overview of the library, every number computed live."""

from pathlib import Path
from typing import Annotated

import typer


def tour(
    svg: Annotated[Path | None, typer.Option(help="Also write the output as an SVG image.")] = None,
) -> None:
    """Show attention by hand, sharpness, masks, backends that agree, and the models."""
    from rich.console import Console

    from regard.cli.tour import sections
    from regard.errors import FileError
    from regard.files import write_text

    if svg is not None and not svg.resolve().parent.is_dir():  # raised now, not after the tour
        raise FileError(f"svg: needs a folder that exists, got {svg.parent}; try another path")
    console = Console(record=svg is not None, width=sections.WIDTH, highlight=False)
    sections.print_head_by_hand(console)
    sections.print_sharpness(console)
    sections.print_masks(console)
    sections.print_backends(console)
    sections.print_models(console)
    if svg is not None:
        write_text(svg, console.export_svg(title="regard tour"))
