"""`regard report`: one HTML page about a run."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file; RUN/report.html, with CARD.md, if not given."),
    ] = None,
) -> None:
    """Write one HTML page about a run: scores, curves, mistakes, samples, attention, cost, data."""
    from regard import runs
    from regard.cli.output import progress_bar

    if out is None and run in runs.pretrained_names():
        out = Path(f"{run}-report.html")  # not into the installed package
    with progress_bar("evaluating"):
        page = runs.load(run).report(out)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, for any browser")
