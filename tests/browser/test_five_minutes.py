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


def test_it_works_by_the_keys_that_it_names_before_a_projector(new_page):
    page = new_page(viewport={"width": 1920, "height": 1080})

    def shown(*words):
        settle(page)
        page.wait_for_timeout(600)
        text = " ".join(page.locator("main").inner_text().split())
        numbers = page.locator(".heatmap .number").all_text_contents()
        assert [x for x in words if x not in text and x not in numbers] == []

    page.goto("/#/text?model=stories")
    settle(page)
    page.get_by_role("button", name="Present").click()
    shown("→ Helen 99%", ".40", ".50", "Helen 99% → 0.1%", "it would write Clara")
    page.keyboard.press("ArrowRight")
    shown("Helen 99% → 90%")
    page.keyboard.press("2")
    shown("→ are 36%", ".99", "it would write is")
    page.locator(".text-detail .heatmap .number", has_text=".99").click()
    shown("query 4 ' lamp' gives key 1 ' keys' the weight 0.985502")
    page.keyboard.press("Escape")
    settle(page)
    assert page.locator(".drawer").count() == 0
    page.keyboard.press("3")  # the map has the focus, and needs its arrows alone
    shown("→ wind 99%")
    page.locator("h2").first.click()
    for _ in range(12):
        if page.locator(".head-thumb[aria-pressed=true]").inner_text().startswith("1·1"):
            break
        page.keyboard.press("ArrowRight")
        settle(page)
    shown("offset -6")
