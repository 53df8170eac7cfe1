"""`regard export`: a run for other programs, as ONNX files or a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; ./RUN-FORMAT if not given."),
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="onnx or huggingface.")] = "onnx",
) -> None:
    """Export a run to ONNX files, compared with torch, or to a folder that transformers opens."""
    from regard import runs
    from regard.cli.output import progress_bar
    from regard.errors import ConfigError

    if kind not in ("onnx", "huggingface"):
        raise ConfigError(f"format: needs onnx or huggingface, got {kind!r}")
    folder = out or Path(f"{Path(run).name}-{kind}")
    loaded = runs.load(run, device="cpu")
    if kind == "huggingface":
        print(loaded.save_pretrained(folder))
        return
    with progress_bar("exporting"):
        files = loaded.export(folder)
    for file, difference in files:
        size = file.stat().st_size / 1e6
        print(f"{file}\t{size:.1f} MB\tat most {difference:.1e} from torch", flush=True)
