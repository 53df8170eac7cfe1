"""The page as one HTML file that needs no server: its modules, a view, and the responses it shows.

page = offline_page("/text?model=phrases", [saved("models", {...}), saved("text", {...})])
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from regard.errors import ConfigError
from regard.page.bundle import bundle, modules, page_files, styles

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

    >>> "regard/app.js" in offline_page("/text", [])
    True
    """
    view = state.lstrip("#/").partition("?")[0] or "text"
    views = {str(x.get("name", "")).partition(".")[0] for x in responses} | {view}
    held = sorted(view for view in views if f"views/{view}.js" in modules())
    code, style = bundle(f"views/{view}.js" for view in held), styles()
    imports = json.dumps({"imports": {"regard/app.js": _data_url(code)}})
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
