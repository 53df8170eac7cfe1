"""`regard export`: a run as ONNX files."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; ./RUN-onnx if not given."),
    ] = None,
) -> None:
    """Export a run to ONNX files, compared with torch, with its tokenizer and export.json."""
    from regard import runs
    from regard.cli.output import progress_bar

    folder = out or Path(f"{Path(run).name}-onnx")
    with progress_bar("exporting"):
        files = runs.load(run, device="cpu").export(folder)
    for file, difference in files:
        size = file.stat().st_size / 1e6
        print(f"{file}\t{size:.1f} MB\tat most {difference:.1e} from torch", flush=True)
