"""`regard new`: a recipe file for own data."""

from pathlib import Path
from typing import Annotated

import typer


def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="pairs, text, images, speech, tags or labels.")
    ],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA…", help="Folder or file; two aligned files for pairs."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Recipe file to write.")] = Path(
        "task.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Look at data and write a recipe file for it, with the reason for each decision.

    Examples: regard new pairs train.de train.en; regard new images photos/ -o photos.toml
    """
    from regard.cli.output import print_message, report_written
    from regard.tasks.proposals.file import write_proposal

    proposal = write_proposal(kind, data, out, force=force)
    print_message(proposal.report.summary())
    for line in proposal.report.warnings():
        print_message(f"warning: {line}")
    report_written(out, f"{out}: written; next:\n  regard data {out}\n  regard train {out}")
