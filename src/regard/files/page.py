"""HTML pages without scripts, which need no network: one head and style for all of them."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from regard.files.text import read_text

PAGE = Path(__file__).with_name("page.html")


def fill_page(template: Path, title: str, parts: Mapping[str, str]) -> str:
    """A page from a template, which has a style of its own and then the body.

    `parts` are HTML by name: [[NAME]] in the template is replaced; so is [[TITLE]].

    >>> import tempfile
    >>> template = Path(tempfile.mkdtemp()) / "page.html"
    >>> _ = template.write_text("<style>\\n</style>\\n<p>[[TEXT]]</p>\\n")
    >>> "<title>A &lt; B</title>" in fill_page(template, "A < B", {"TEXT": "so it is"})
    True
    """
    style, body = read_text(template).removeprefix("<style>\n").split("</style>\n")
    page = read_text(PAGE).replace("[[STYLE]]", style.rstrip()).replace("[[BODY]]", body.rstrip())
    # one pass: a placeholder inside a part is not replaced
    known = {"TITLE": escape(title), **parts}
    return re.sub(r"\[\[([A-Z]+)\]\]", lambda mark: known[mark[1]], page)
