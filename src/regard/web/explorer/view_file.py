"""A view of the explorer as a file: an offline page, CSV, JSON, SVG or PNG."""

import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from regard.errors import ConfigError, check_choice, suggestion
from regard.files import atomic_write
from regard.inspection.figures.canvas import render
from regard.page import offline_page, saved
from regard.web.explorer.explorer import Explorer, Query, find_query, query_names
from regard.web.jobs import Job

FORMATS = (".html", ".csv", ".json", ".svg", ".png", ".pdf")


def view_names() -> list[str]:
    """The names of the views.

    >>> "text" in view_names()
    True
    """
    return [name for name in query_names() if "." not in name and name != "models"]


def write_view(explorer: Explorer, view: str, params: dict[str, str], path: str | Path) -> Path:
    """Write what the page shows for a view; the suffix of the path chooses the format.

    Args:
        explorer: that computes it.
        view: such as "text".
        params: of the view, as they stand in its link.
        path: of the file: .html, .csv, .json, .svg, .png or .pdf.

    >>> import tempfile
    >>> from regard.web.explorer.catalog import Catalog
    >>> file = Path(tempfile.mkdtemp()) / "costs.csv"
    >>> _ = write_view(Explorer(Catalog(["phrases"])), "cost", {"model": "phrases"}, file)
    """
    path = Path(path)
    check_choice("view", view, view_names())
    check_choice("out", path.suffix, FORMATS)
    query = find_query(view)
    known, suffix = query.request.model_fields, path.suffix
    for name in params:
        if name not in known:
            raise ConfigError(
                f"{view}: needs parameters such as {', '.join(known)}, got {name!r}"
                f"{suggestion(name, known)}"
            )
    # the numbers of a link or a command line are texts
    body = query.parse(params).model_dump(mode="json", exclude_unset=True)
    response, file = None if suffix == ".csv" else explorer.answer(view, body), io.BytesIO()
    if suffix == ".csv":
        file.write(explorer.csv(query, body, Job()).encode())
    elif suffix == ".json":
        file.write(json.dumps(response, ensure_ascii=False, indent=1).encode())
    elif suffix == ".html":
        responses = collect_responses(explorer, query, body, response)
        file.write(offline_page(f"/{view}?{urlencode(params)}", responses).encode())
    elif query.figure is None:
        raise ConfigError(f"out: needs .html, .csv or .json for {view}, got {suffix}")
    else:
        render(query.figure(response), file, format=suffix[1:])
    with atomic_write(path) as new:
        new.write_bytes(file.getvalue())
    return path


def collect_responses(
    explorer: Explorer, query: Query, body: dict[str, Any], response: Any
) -> list[dict[str, Any]]:
    """Everything that the page requests when it opens a view."""
    related = [] if query.related is None else query.related(query.parse(body), response)
    return [
        saved("models", explorer.answer("models", {})),
        saved(query.name, response),
        *(saved(name, explorer.answer(name, other), other) for name, other in related),
    ]
