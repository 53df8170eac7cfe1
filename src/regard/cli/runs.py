"""`regard runs`: a table of the runs in a folder."""

from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Runs folder.")] = Path("runs"),
) -> None:
    """List the runs in a folder: step, state, scores, and the settings in which they differ."""
    from rich.console import Console
    from rich.table import Table

    from regard import runs

    rows = runs.list_runs(folder)
    if not rows:
        print(f"{folder}: no runs yet; `regard train phrases` creates one")
        return
    metrics = list(dict.fromkeys(name for row in rows for name in row.get("scores", {})))
    columns = ("run", "step", "state", *metrics, "split", "seconds", "differs")
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        scores = (row.get("scores", {}).get(name) for name in metrics)
        table.add_row(
            row["run"],
            f"{row.get('step', '?')}/{row.get('steps', '?')}",
            row["state"],
            *("" if score is None else f"{score:.4g}" for score in scores),
            row.get("split", ""),
            f"{row.get('seconds', 0):.0f}",
            ", ".join(f"{name}={value}" for name, value in row["differs"].items()),
        )
    console = Console(highlight=False)
    # a file has no width of its own: cut no line
    Console(width=console.width if console.is_terminal else 200, highlight=False).print(table)
