"""`regard view`: a view of the explorer as a file, without a browser."""

from pathlib import Path
from typing import Annotated

import typer


def view(
    name: Annotated[
        str,
        typer.Argument(
            metavar="VIEW",
            help="text, what-if, atlas, time, image, sound, lesson, work, claims, cost or runs.",
        ),
    ],
    params: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE…",
            help='Parameters as in the link of the page: model=phrases text="3 days" to=de.',
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="File to write: .html (offline page), .csv, .json, .svg, .png.")
    ] = Path("view.html"),
    runs: Annotated[Path, typer.Option(help="Folder whose runs can be named.")] = Path("runs"),
) -> None:
    """Write a view of the explorer to a file: the page itself, its table or its picture.

    A model or a lesson may also be a path, and file=PATH gives the image or sound of these views.
    Example: regard view text model=phrases text="3 days" to=de
    """
    from regard.cli.look import silence_transformers
    from regard.cli.output import progress_bar, report_written
    from regard.errors import ConfigError, FileError
    from regard.runs.loading import preset_names
    from regard.web.explorer.atlas_maps import is_demo
    from regard.web.explorer.catalog import Catalog, default_names
    from regard.web.explorer.explorer import Explorer
    from regard.web.explorer.view_file import write_view

    given = dict(_split(text) for text in params or [])
    folders = [runs] if runs.is_dir() else []
    catalog = Catalog(default_names(), folders, device="cpu")
    known = [*catalog.entries, *preset_names()]
    for field in ("model", "other_model"):
        if field in given and given[field] not in known and not is_demo(given[field]):
            given[field] = catalog.add(given[field])
    lesson = Path(given.get("lesson", ""))
    is_file = lesson.suffix == ".md"
    explorer = Explorer(catalog, lessons=lesson if is_file else None)
    if is_file:
        given["lesson"] = lesson.stem
    if "file" in given:
        if not Path(given["file"]).is_file():
            raise FileError(f"file: needs a file that exists, got {given['file']}")
        given["file"] = explorer.upload(Path(given["file"]).read_bytes())
    if not out.resolve().parent.is_dir():
        raise ConfigError(f"out: needs a folder that exists, got {out.parent}; try another path")
    with silence_transformers(), progress_bar("computing"):
        write_view(explorer, name, given, out)
    report_written(out, f"{out}: {name}")


def _split(text: str) -> tuple[str, str]:
    """The name and the value of a parameter.

    >>> _split("text=a=b")
    ('text', 'a=b')
    """
    from regard.errors import ConfigError

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"params: need NAME=VALUE, got {text[:40]!r}; try text='3 days'")
    return name, value
