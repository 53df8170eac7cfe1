"""Every code block of the documentation runs, in order, in one namespace per page."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference"  # its examples are the doctests of the source
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in DOCS.rglob("*.md") if GENERATED not in page.parents),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_code_blocks_run(page):
    namespace: dict = {"__name__": page.stem}
    text = page.read_text()
    for block in BLOCK.finditer(text):
        code, line = block[1], text[: block.start()].count("\n") + 1
        if ">>>" not in code:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
            continue
        example = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
        failures: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            example, out=failures.append, clear_globs=False
        )
        namespace.update(example.globs)
        assert not failures, "".join(failures)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_point_to_files_that_exist(page):
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_wrong_code_block_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\n>>> x + 1\n3\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        test_code_blocks_run(page)
