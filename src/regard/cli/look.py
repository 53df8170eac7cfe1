"""`regard look`: a page about what the heads of a model do while it reads a text."""

from pathlib import Path
from typing import Annotated

import typer


def look(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER",
            help="A run, a specimen's name, a saved model, or a Hugging Face model in a folder.",
        ),
    ],
    text: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="What the model reads; token numbers if it has no tokenizer."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Annotated[
        str | None, typer.Option(help="What a model that translates writes, in the same way.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="The language that a run's translator writes.")
    ] = None,
    at: Annotated[str, typer.Option(help="Which attentions: a glob over their names.")] = "*",
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD,QUERY,KEY",
            help="Tell the arithmetic of this weight, counted from 0, instead of writing a page.",
        ),
    ] = None,
    describe: Annotated[
        bool, typer.Option("--words", help="Tell every map in words instead.")
    ] = False,
    query: Annotated[
        int | None,
        typer.Option(
            min=0, help="Tell where this token looks, by layer and head, and before training."
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Also look for heads that copy, on random tokens read twice.")
    ] = False,
) -> None:
    """Write a page, to be opened in any browser, about what each head looks at."""
    from regard.cli.transformers_logging import silence_transformers
    from regard.errors import FileError
    from regard.files import is_stream
    from regard.inspection import probe_induction as find_copying
    from regard.inspection import write_report
    from regard.runs import load_text_model
    from regard.runs.jobs.progress import progress_bar, report_written

    if not out.resolve().parent.is_dir():  # said now, not after the model has run
        raise FileError(f"out: needs a folder that exists, got {out.parent}; try another place")
    with silence_transformers():
        with progress_bar("looking"):
            reader = load_text_model(model)
        if query is not None:
            from regard.runs.look_text import format_attention_table

            print(format_attention_table(reader, text, query, target, at, to))
            return
        with progress_bar("looking"):
            sight = reader.look(text, target, at, to=to)
            probed = find_copying(reader.model, reader.vocab or 2) if probe else None
    if cell is not None or describe:
        from regard.runs.look_text import describe_maps, explain_weight

        print(describe_maps(sight) if cell is None else explain_weight(reader.model, sight, cell))
        return
    title = f"What {type(reader.model).__name__} looks at"
    with progress_bar("writing"):
        write_report(sight, out, title=title, separators=reader.separators, probe=probed)
    heads = sum(site.heads for site in sight)
    size = "" if is_stream(out) else f", {out.stat().st_size / 1e6:.1f} MB"
    report_written(out, f"{out}: {len(sight)} attentions, {heads} heads{size}")
    for name, reason in sight.skipped.items():
        report_written(out, f"not seen: {name}, {reason}")
