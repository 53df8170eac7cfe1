"""Every code block of the documentation runs, in order, one namespace a page."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page):
    namespace: dict = {"__name__": page.stem}
    text = page.read_text()
    for block in BLOCK.finditer(text):
        code, line = block[1], text[: block.start()].count("\n") + 1
        if ">>>" not in code:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
            continue
        example = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line)
        told: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            example, out=told.append, clear_globs=False
        )
        namespace.update(example.globs)
        assert not told, "".join(told)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_block_that_is_wrong_would_be_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\n>>> x + 1\n3\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        test_code_blocks_run(page)
