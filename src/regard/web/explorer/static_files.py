"""The files of the page, read once: no request opens a path."""

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response

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
        file = page_files()[request.url.path]
        headers = HEADERS | {"ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.content_type, headers=headers)

    for url in page_files():
        app.add_api_route(url, serve, methods=["GET"], include_in_schema=False)


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
    saved = json.dumps({"state": state, "answers": answers}, ensure_ascii=False, allow_nan=False)
    page = files["/"].content.decode()
    page = re.sub(r'<link rel="(stylesheet|icon)"[^>]*>\s*', "", page)
    page = re.sub(r'<script type="module"[^>]*></script>\s*', "", page)
    head = (
        f"<style>{files['/page/app.css'].content.decode()}</style>\n"
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>\n'
        f'<script type="application/json" id="saved">{_inside_script(saved)}</script>\n'
    )
    page = page.replace("</head>", head + "</head>")
    return page.replace("</body>", '<script type="module">import "regard/app.js";</script></body>')


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


def _inside_script(text: str) -> str:
    """JSON that cannot end the script element that holds it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
