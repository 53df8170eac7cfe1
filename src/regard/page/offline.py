"""The page as one HTML file that needs no server: its modules, a view, and the responses it shows.

page = offline_page("/text?model=phrases", [saved("models", {...}), saved("text", {...})])
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from regard.errors import ConfigError

FOLDER = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
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
            files[url] = PageFile(content, TYPES[path.suffix], _etag(content))
    return files


@cache
def start_file() -> PageFile:
    """The file of "/", which names the modules of its first view: they load at once, not in turn.

    >>> b'modulepreload" href="/page/lib/dom.js"' in start_file().content
    True
    """
    names = sorted(_modules({"views/text.js"}))
    links = "".join(f'<link rel="modulepreload" href="/page/{name}">\n' for name in names)
    content = page_files()["/"].content.replace(b"</head>", links.encode() + b"</head>", 1)
    return PageFile(content, TYPES[".html"], _etag(content))


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:20]}"'


# of a module: `from "./x.js"`, `import "./x.js"` and `import("./x.js")`, which loads a view
IMPORT = re.compile(r'((?:from|import|import\()\s*)"(\.[^"]+)"')
START = 'import "regard/app.js";'


def saved(name: str, response: Any, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The response to a query of this name and body, whatever the view adds to the request.

    >>> saved("models", {"models": []})["any"]
    True
    """
    return {"name": name, "body": dict(body or {}), "response": response, "any": True}


def offline_page(
    state: str, responses: Sequence[Mapping[str, Any]], *, title: str = "", plain_html: str = ""
) -> str:
    """The page as one HTML file that needs no server; it holds the views that have a response.

    Args:
        state: of the view, as in the URL behind #.
        responses: each a dict with the name of a query, its body and its response.
        title: of a document; none for a saved view.
        plain_html: what is shown without JavaScript.

    >>> "regard/views/text.js" in offline_page("/text", [])
    True
    """
    view = state.lstrip("#/").partition("?")[0] or "text"
    views = {str(x.get("name", "")).partition(".")[0] for x in responses} | {view}
    modules = _modules({f"views/{view}.js" for view in views})
    held = sorted(view for view in views if f"views/{view}.js" in modules)
    imports = json.dumps({"imports": {f"regard/{n}": _data_url(x) for n, x in modules.items()}})
    styles = (x.content.decode() for url, x in page_files().items() if url.endswith(".css"))
    style = "".join(styles)
    page = page_files()["/"].content.decode()
    page = re.sub(r'<link rel="(stylesheet|icon)"[^>]*>\s*', "", page)
    page = re.sub(r'<script type="module"[^>]*></script>\s*', "", page)
    page = page.replace("<title>Regard</title>", f"<title>{escape(title or 'Regard')}</title>")
    policy = _policy([imports, START], style)
    content = {"state": state, "title": title, "views": held, "responses": list(responses)}
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>\n"
        f'<script type="importmap">{imports}</script>\n'
        f'<script type="application/json" id="saved">{_as_json(content)}</script>\n'
    )
    page = page.replace("</head>", head + "</head>", 1)
    if plain_html:
        plain = f"<noscript><p>Pictures need JavaScript.</p>{plain_html}</noscript>"
        page = re.sub(r"(?s)<noscript>.*</noscript>", lambda _: plain, page)
    return f'<script type="module">{START}</script></body>'.join(page.rsplit("</body>", 1))


def _modules(views: set[str]) -> dict[str, str]:
    """The code by module name: the page's modules, and of the views only these."""
    modules: dict[str, str] = {}
    waiting = ["app.js"]
    while waiting:
        name = waiting.pop()
        file = page_files().get(f"/page/{name}")
        if name in modules or file is None:
            continue
        code = file.content.decode()
        for match in IMPORT.finditer(code):
            target = _resolve(name, match[2])
            if "(" not in match[1] or target in views:
                waiting.append(target)
        modules[name] = IMPORT.sub(
            lambda match, name=name: f'{match[1]}"regard/{_resolve(name, match[2])}"', code
        )
    return modules


def _resolve(module: str, target: str) -> str:
    """The name of a module that another one imports by a relative path.

    >>> _resolve("views/text.js", "../lib/dom.js")
    'lib/dom.js'
    """
    parts: list[str] = []
    for part in (PurePosixPath(module).parent / target).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


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


def _as_json(content: Any) -> str:
    """JSON in ASCII that cannot end the script element that holds it."""
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise ConfigError("responses: need JSON of finite numbers, got something else") from None
    return text.replace("<", "\\u003c")


def _data_url(code: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(code.encode()).decode()}"
