"""`regard look`: what the attention heads of a model do on a text."""

from pathlib import Path
from typing import Annotated

import typer


def look(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER",
            help="Run folder, pretrained model, saved model or Hugging Face folder.",
        ),
    ],
    text: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="Input text; token ids if there is no tokenizer."),
    ],
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("report.html"),
    target: Annotated[str | None, typer.Option(help="Target text of an encoder-decoder.")] = None,
    to: Annotated[str | None, typer.Option(help="Target language of a run's translator.")] = None,
    at: Annotated[str, typer.Option(help="Glob over attention sites.")] = "*",
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD,QUERY,KEY",
            help="Print the arithmetic of one weight, counted from 0, instead of a page.",
        ),
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Describe every head in words instead.")
    ] = False,
    query: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="List the top keys of this query per head, trained and untrained, instead.",
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Also score induction heads on repeated random tokens.")
    ] = False,
) -> None:
    """Write an HTML page about what each attention head attends to."""
    from regard import runs
    from regard.cli.output import progress_bar, report_written
    from regard.cli.transformers_logging import silence_transformers
    from regard.runs.apply.look import parse_cell

    position = None if cell is None else parse_cell(cell)
    with silence_transformers(), progress_bar("looking"):
        report = runs.look_report(
            runs.load_text_model(model, device="cpu"), text, target=target, to=to, at=at, out=out,
            cell=position, describe=describe, query=query, probe=probe,
        )  # fmt: skip
    report_written(out, report.text)
    for name, reason in report.skipped.items():
        report_written(out, f"not recorded: {name}, {reason}")
