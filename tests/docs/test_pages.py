"""Every code block of the documentation runs, in order, in one namespace per page."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("extract_examples", ROOT / "docs/extract_examples.py")
assert spec is not None
assert spec.loader is not None
extract_examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(extract_examples)

PAGES, BLOCK = extract_examples.PAGES, extract_examples.BLOCK
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


def test_examples_are_extracted_to_the_lines_of_the_page_for_the_type_checker():
    page = "# Page\n```python\nx = 1\n```\nThen:\n```python\n>>> if x:\n...     x + 1\n2\n```\n"
    lines = extract_examples.extract(page).splitlines()
    assert lines[1:] == ["", "x = 1", "", "", "", "if x:", "    x + 1", "", ""]
    assert extract_examples.extract("# Page\n```sh\nls\n```\n") == ""
