"""The script for a lecturer works as printed: each link opens a page with the words in bold."""

import re
from pathlib import Path

import pytest

from browser.conftest import settle

pytestmark = pytest.mark.browser
PAGE = Path(__file__).parents[2] / "docs/look/five-minutes.md"
LINK = re.compile(r"\(http://127\.0\.0\.1:8000/#(.*?)\)(?=[,.: ]|$)", re.MULTILINE)


def test_each_step_shows_what_the_script_says(page):
    steps = re.split(r"^\d\. ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert len(steps) == 8
    checked = 0
    for step in steps:
        if link := LINK.search(step):
            page.goto("about:blank")
            page.goto(f"/#{link[1]}")
            settle(page)
            page.wait_for_timeout(600)
        shown = " ".join(page.locator("main").inner_text().split())
        numbers = page.locator(".heatmap .number").all_text_contents()
        for says in re.findall(r"\*\*(.+?)\*\*", step):
            assert says in shown or says in numbers, says
            checked += 1
    assert checked == 13
