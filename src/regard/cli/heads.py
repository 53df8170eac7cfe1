"""`regard heads`: scores of every attention head, and examples of them in text files."""

from pathlib import Path
from typing import Annotated

import typer


def heads(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER",
            help="Run folder, pretrained model, saved model or Hugging Face folder.",
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Text files, or folders of .txt files, to search for examples; without any, heads "
            "are scored on repeated random tokens.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Score: induction, previous, duplicate, retrieval or sink. For a search also a "
            "statistic of each query, such as entropy. By default induction for a search, else all."
        ),
    ] = None,
    at: Annotated[str, typer.Option(help="Glob over attention sites.")] = "*",
    top: Annotated[int, typer.Option(min=1, help="Heads per score; examples per head.")] = 3,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens per window of a text.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Heat map of the scores: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Score every attention head, or find text on which each head shows a pattern most."""
    import json
    import sys

    from regard import inspection, runs
    from regard.cli.look import silence_transformers
    from regard.errors import ShapeError

    if files and out:
        raise ShapeError("out: needs scores to draw, got files to search; try --json")
    with silence_transformers():
        text_model = runs.load(model, device="cpu").text_model
        if files:
            found = runs.search_files(
                text_model, files, by or "induction", at=at, count=top,
                max_length=max_length, progress=sys.stderr.isatty(),
            )  # fmt: skip
            print(json.dumps(found.to_dicts(), indent=1, ensure_ascii=False) if as_json else found)
            return
        table = inspection.score_heads(text_model.model, at=at)
    names = [by] if by else [*table.columns.values()]
    best = {name: table.top(top, by=name) for name in names}
    if out:
        inspection.draw.head_scores(table, by, path=out)
    if as_json:
        print(json.dumps(table.to_dicts(), indent=1))
        return
    for name, rows in best.items():
        print(f"{name}:\n{rows}\n")
    if out:
        print(f"{out}: {len(table)} heads")
