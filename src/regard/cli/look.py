"""`regard look`: a page about what the heads of a model do while it reads a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import nn

    from regard.look import Sight


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
    probe: Annotated[
        bool, typer.Option(help="Also look for heads that copy, on random tokens read twice.")
    ] = False,
) -> None:
    """Write a page, to be opened in any browser, about what each head looks at."""
    from regard.cli.quiet import quiet
    from regard.errors import FileError
    from regard.look import open_reader, write_report
    from regard.look import probe as find_copying

    if not out.resolve().parent.is_dir():  # said now, not after the model has run
        raise FileError(f"out: needs a folder that exists, got {out.parent}; try another place")
    with quiet():
        reader = open_reader(model)
        sight = reader.read(text, target, at, to=to)
        probed = find_copying(reader.model, reader.vocab or 2) if probe else None
    if cell is not None:
        print(_told(reader.model, sight, cell))
        return
    title = f"What {type(reader.model).__name__} looks at"
    write_report(sight, out, title=title, separators=reader.separators, probed=probed)
    heads = sum(site.heads for site in sight)
    print(f"{out}: {len(sight)} attentions, {heads} heads, {out.stat().st_size / 1e6:.1f} MB")
    for name, reason in sight.skipped.items():
        print(f"not seen: {name}, {reason}")


def _told(model: "nn.Module", sight: "Sight", cell: str) -> str:
    """One weight of the one attention that was asked for, with its way through the output map."""
    from regard.errors import LookError
    from regard.look import output_weights
    from regard.work import explain

    if len(sight) != 1:
        names = ", ".join(sight.names[:3])
        raise LookError(f"at: needs one attention beside --cell, got {len(sight)}; try {names}")
    parts = cell.split(",")
    if len(parts) != 3 or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise LookError(f"cell: needs a head, a query and a key, got {cell!r}; try 0,1,2")
    site, (head, query, key) = sight.sites[0], map(int, parts)
    try:
        w_out = output_weights(model, site)
    except LookError:  # a map that we know no name for: the way out is left untold
        w_out = None
    return str(explain(site, head, query, key, w_out=w_out))
