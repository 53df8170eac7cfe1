"""What holds for every view of the page."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
FOLDER = Path(__file__).parents[2] / "src/regard/web/page"
VIEWS = re.findall(r"^  (?:\"?)([a-z-]+)(?:\"?): \[\"", (FOLDER / "app.js").read_text(), re.M)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_without_an_error(page, open_view, view):
    open_view(view)
    assert page.locator("main h1").inner_text()
    assert page.locator("main .error").all_inner_texts() == []
