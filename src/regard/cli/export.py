"""`regard export`: a run as ONNX files, for programs without torch."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a run, or a specimen's name.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The folder to write; RUN-onnx here if not given."),
    ] = None,
) -> None:
    """Write a run as ONNX files, each compared with torch, with its tokenizer and export.json."""
    from regard import runs
    from regard.runs.jobs.progress import progress_bar

    folder = out or Path(f"{Path(run).name}-onnx")
    opened = runs.load_run(runs.find_run(run))
    with progress_bar("exporting"):
        files = runs.export_run(opened, folder)
    for file, difference in files:
        size = file.stat().st_size / 1e6
        print(f"{file}\t{size:.1f} MB\tat most {difference:.1e} from torch", flush=True)
