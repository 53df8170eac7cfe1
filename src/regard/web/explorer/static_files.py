"""The files of the page, read once: no request opens a path."""

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response

from regard.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag
}


class PageFile(NamedTuple):
    """A file of the page."""

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


def add_page(app: FastAPI) -> None:
    """Serve the files of the page."""

    def serve(request: Request) -> Response:
        file = page_files()[request.scope["path"]]
        headers = HEADERS | {"ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.content_type, headers=headers)

    for url in page_files():
        app.add_api_route(url, serve, methods=["GET", "HEAD"], include_in_schema=False)


def offline_page(state: str, answers: list[dict[str, Any]]) -> str:
    """The page as one HTML file that needs no server.

    Args:
        state: of the view, as in the URL behind #.
        answers: each a dict with the name of a query, its body and its answer.
    """
    files = page_files()
    modules = {
        f"regard{url.removeprefix('/page')}": _as_data_url(_absolute_imports(url, file))
        for url, file in files.items()
        if url.endswith(".js")
    }
    style, imports = files["/page/app.css"].content.decode(), json.dumps({"imports": modules})
    start = 'import "regard/app.js";'
    policy = _policy([imports, start], style)
    page = files["/"].content.decode()
    page = re.sub(r'<link rel="(stylesheet|icon)"[^>]*>\s*', "", page)
    page = re.sub(r'<script type="module"[^>]*></script>\s*', "", page)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>\n"
        f'<script type="importmap">{imports}</script>\n'
        f'<script type="application/json" id="saved">{_saved(state, answers)}</script>\n'
    )
    page = page.replace("</head>", head + "</head>")
    return page.replace("</body>", f'<script type="module">{start}</script></body>')


def _policy(scripts: list[str], style: str) -> str:
    """Only this code runs, and nothing is loaded or sent."""
    hashes = " ".join(map(_source_hash, scripts))
    return (
        f"default-src 'none'; script-src {hashes} data:; style-src {_source_hash(style)}; "
        "img-src blob: data:; media-src blob: data:; base-uri 'none'; form-action 'none'"
    )


def _source_hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _saved(state: str, answers: list[dict[str, Any]]) -> str:
    """JSON in ASCII that cannot end the script element that holds it."""
    try:
        saved = json.dumps({"state": state, "answers": answers}, allow_nan=False)
    except (ValueError, RecursionError):
        raise ConfigError("answers: need JSON of finite numbers, got something else") from None
    return saved.replace("<", "\\u003c")


def _absolute_imports(url: str, file: PageFile) -> str:
    """The module with imports by name instead of by relative path."""
    folder = Path(url.removeprefix("/page")).parent

    def rename(match: re.Match[str]) -> str:
        parts: list[str] = []
        for part in (folder / match[2]).parts:
            if part == "..":
                parts.pop()
            elif part not in (".", "/"):
                parts.append(part)
        return f'{match[1]}"regard/{"/".join(parts)}"'

    return re.sub(r'((?:from|import|import\()\s*)"(\.[^"]+)"', rename, file.content.decode())


def _as_data_url(code: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(code.encode()).decode()}"
