"""`regard quantize`: a run with int8 weights."""

from pathlib import Path
from typing import Annotated

import typer


def quantize(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="New run folder; ./RUN-int8 if not given."),
    ] = None,
    score: Annotated[
        bool, typer.Option("--score/--no-score", help="Evaluate both on the test split.")
    ] = True,
) -> None:
    """Quantize a run to int8 weights: a smaller file, faster on a CPU, usable like any run."""
    from regard import runs
    from regard.cli.output import progress_bar

    folder = out or Path(f"{Path(run).name}-int8")
    with progress_bar("quantising"):
        result = runs.load(run).quantize(folder, score=score)
    old, new = (size / 1e6 for size in result.file_sizes)
    print(f"{folder}\t{old:.2f} MB before\t{new:.2f} MB after")
    for name, value in result.scores_after.items():
        if isinstance(value, int | float):
            print(f"{name}\t{result.scores_before[name]:.4f} before\t{value:.4f} after")
