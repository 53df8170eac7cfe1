"""The files of the page, read once: no request opens a path."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class PageFile(NamedTuple):
    """A file of the page.

    >>> page_files()["/"].content_type
    'text/html; charset=utf-8'
    """

    content: bytes
    content_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """The files by URL path.

    >>> sorted(page_files())[0]
    '/'
    """
    files = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in TYPES:
            content, name = path.read_bytes(), path.relative_to(FOLDER).as_posix()
            url = "/" if name == "index.html" else f"/page/{name}"
            etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            files[url] = PageFile(content, TYPES[path.suffix], etag)
    return files
