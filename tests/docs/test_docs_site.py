"""The site: every page is in the navigation, names have one style, the build is offline."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
SECTIONS = (
    "start",
    "look",
    "train",
    "run",
    "work",
    "claims",
    "scale",
    "results",
    "reference",
    "contributing",
)


def nav_pages(entry) -> list[str]:
    """All pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in nav_pages(child)]


def test_every_page_is_in_the_navigation_once():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    listed = nav_pages(CONFIG["nav"])
    assert set(listed) == pages
    assert len(listed) == len(set(listed))


def test_every_section_has_an_index():
    folders = {page.parent.relative_to(DOCS) for page in DOCS.rglob("*.md")}
    assert {folder.parts[0] for folder in folders if folder.parts} == set(SECTIONS)
    assert all((DOCS / folder / "index.md").exists() for folder in folders)


def test_names_are_lower_case_with_hyphens():
    generators = {path.name for path in DOCS.glob("*.py")}
    names = [path.stem for path in DOCS.rglob("*") if path.name not in generators]
    names = [name for name in names if name != "__pycache__" and "cpython" not in name]
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


def test_the_build_is_offline_and_its_output_is_ignored():
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    assert not [
        url
        for key in ("extra_javascript", "extra_css")
        for url in CONFIG.get(key, [])
        if "//" in url
    ]
    assert all((DOCS / script).exists() for script in CONFIG["extra"]["polyfills"])
    folder = CONFIG["site_dir"].partition("/")[0]
    assert f"{folder}/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize(
    ("html", "external"),
    [
        ('<script src="assets/a.js">', False),
        ('<a href="https://example.org">', False),
        ('<script src="https://unpkg.com/x">', True),
        ('<link rel="preconnect" href="//fonts.example.org">', True),
    ],
)
def test_external_resources_are_recognised(html, external):
    source = (DOCS / "site_hooks.py").read_text()
    pattern = re.search(r'^EXTERNAL = re\.compile\(\s*r"(.*?)"\s*\)$', source, re.MULTILINE | re.S)
    assert pattern is not None
    assert bool(re.search(pattern[1].replace('\\"', '"'), html)) is external
