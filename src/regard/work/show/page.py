"""Self-contained HTML pages."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

PAGE_TEMPLATE = Path(__file__).parent / "page.html"


def render_page(
    title: str, subtitle: str, body: str, links: Mapping[str, str] | None = None
) -> str:
    """Render a page; `links` maps element ids to navigation labels.

    >>> "<h1>A &lt; B</h1>" in render_page("A < B", "two of them", "<p>so it is</p>")
    True
    """
    led = "\n".join(f'<a href="#{at}">{escape(name)}</a>' for at, name in (links or {}).items())
    parts = {
        "TITLE": escape(title),
        "SUBTITLE": escape(subtitle),
        "NAV": f'<nav aria-label="Steps">{led}</nav>' if led else "",
        "BODY": body,
    }
    # one pass, so that a placeholder inside a title is not expanded
    return re.sub(
        r"\[\[([A-Z]+)\]\]", lambda mark: parts[mark[1]], PAGE_TEMPLATE.read_text(encoding="utf-8")
    )


def anchor_id(name: str) -> str:
    """Element id for a step name.

    >>> anchor_id("h_1"), anchor_id("∂h_1")
    ('at-h_1', 'at-2202-h_1')
    """
    return "at-" + re.sub(r"[^A-Za-z0-9_]", lambda odd: f"{ord(odd[0]):x}-", name).strip("-")
