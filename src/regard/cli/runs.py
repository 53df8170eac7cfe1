"""`regard runs`: what was trained, side by side."""

from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """List the runs in a folder: how far, how good, and in which settings they differ."""
    from rich.console import Console
    from rich.table import Table

    from regard import runs

    rows = runs.list_runs(folder)
    if not rows:
        print(f"{folder}: no runs yet; regard train phrases makes one")
        return
    known = list(dict.fromkeys(name for row in rows for name in row.get("scores", {})))
    columns = ("run", "step", "state", *known, "on", "seconds", "differs")
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        scores = (row.get("scores", {}).get(name) for name in known)
        table.add_row(
            row["run"],
            f"{row.get('step', '?')}/{row.get('steps', '?')}",
            row["state"],
            *("" if score is None else f"{score:.4g}" for score in scores),
            row.get("part", ""),
            f"{row.get('seconds', 0):.0f}",
            ", ".join(f"{name}={value}" for name, value in row["differs"].items()),
        )
    console = Console(highlight=False)
    # into a file as into a wide window: no line is cut
    Console(width=console.width if console.is_terminal else 200, highlight=False).print(table)
