"""MkDocs hooks: pages taken from the repository root, links to source files, no external resource.

Pages link to source files relatively, which works on a code host. The site does not contain the
source, so a link to a file outside docs/ becomes plain text there, after a check that it exists.
"""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FROM_ROOT = {
    "contributing/index.md": "CONTRIBUTING.md",
    "contributing/changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)(#[^)]*)?\)")
EXTERNAL = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)


def on_page_markdown(markdown: str, page, **_) -> str:
    """The page, or the file of the root that it stands for, with links that the site can follow."""
    name = page.file.src_uri
    here = (DOCS / name).parent
    if name in FROM_ROOT:
        markdown = (ROOT / FROM_ROOT[name]).read_text(encoding="utf-8")
        markdown = markdown.replace("](docs/", "](../").replace("](CHANGELOG.md", "](changelog.md")

    def link(match: re.Match) -> str:
        target = (here / match[2]).resolve()
        if target.is_relative_to(DOCS):
            return match[0]
        if not target.exists():
            raise PluginError(f"{name}: {match[2]} does not exist")
        return match[1]

    return LINK.sub(link, markdown)


def on_post_page(output: str, page, **_) -> str:
    """The page as it is, if it loads nothing over the network."""
    if external := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri} loads {external[0]}")
    return output
