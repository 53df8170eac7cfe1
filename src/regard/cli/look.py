"""`regard look`: what the attention heads of a model do on a text."""

from collections.abc import Iterator
from contextlib import contextmanager
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
        typer.Argument(
            metavar="TEXT|FILE|-",
            help="Input text, a file of it, or - for standard input; token ids if there is no "
            "tokenizer.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("report.html"),
    target: Annotated[str | None, typer.Option(help="Target text of an encoder-decoder.")] = None,
    to: Annotated[str | None, typer.Option(help="Target language of a run.")] = None,
    at: Annotated[str, typer.Option(help="Glob over attention sites: *.cross.")] = "*",
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD,QUERY,KEY",
            help="Instead of a page, print the arithmetic of one weight; indices from 0.",
        ),
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Instead of a page, describe every head in words.")
    ] = False,
    query: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Instead of a page, list the top keys of this query, trained and untrained.",
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Also score induction heads on repeated random tokens.")
    ] = False,
    around: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY,…",
            help="Queries of a long text around which the page has the exact weights.",
        ),
    ] = None,
) -> None:
    """Write an HTML page about what each attention head attends to."""
    from regard import runs
    from regard.cli.jobs import read_input
    from regard.cli.output import progress_bar, report_written
    from regard.runs.apply.look import parse_cell, parse_queries

    position = None if cell is None else parse_cell(cell)
    queries = () if around is None else parse_queries(around)
    with silence_transformers(), progress_bar("looking"):
        report = runs.look_report(
            runs.load(model, device="cpu").text_model, read_input(text), target=target, to=to,
            at=at, out=out, cell=position, describe=describe, query=query, probe=probe, name=model,
            around=queries,
        )  # fmt: skip
    report_written(out, report.text)
    for name, reason in report.skipped.items():
        report_written(out, f"not recorded: {name}, {reason}")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide the progress bars and warnings of transformers; errors still appear."""
    try:
        from transformers.utils import logging
    except ImportError:  # an extra that a model of ours does not need
        yield
        return
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
