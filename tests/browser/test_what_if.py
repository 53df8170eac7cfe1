"""What-if in a browser: controls change the link, the link restores them, numbers are the API's."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.conftest import settle

pytestmark = pytest.mark.browser
TEXT = "2 hours and 5 minutes"
LINK = {"model": "phrases", "text": TEXT, "to": "de"}


def params(page):
    query = urlsplit(urlsplit(page.url).fragment).query
    return {name: values[0] for name, values in parse_qs(query).items()}


def test_the_first_screen_is_a_finished_example(page, open_view):
    open_view("what-if")
    page.wait_for_selector("text=2 Sekunden und 5 Minuten")
    assert params(page)["edits"] == "drop_key('decoder.1.cross', keys=[1])"
    assert page.locator("svg.drawing").count() >= 4


def test_a_slider_moves_the_link_and_the_maps(page, open_view, explorer):
    open_view("what-if", **LINK)
    page.get_by_role("slider", name="scale scores: factor").fill("0.3")
    page.wait_for_function("decodeURIComponent(location.hash).includes('factor=0.3')")
    settle(page)
    page.get_by_text("The same in Python").click()
    assert "rg.edit.scale_scores('*', 0.3)" in page.inner_text("pre")
    answer = explorer.answer("what-if", LINK | {"edits": "scale_scores('*', 0.3)"})
    shown = page.locator("td span[data-value]").first.get_attribute("data-value")
    assert float(shown) == answer["positions"][0]["kl"]


def test_keys_heads_and_undo_work_from_the_keyboard(page, open_view):
    open_view("what-if", **LINK)
    key = page.get_by_role("group", name="drop key: keys").get_by_role("button").nth(1)
    key.focus()
    page.keyboard.press("Enter")
    settle(page)
    head = page.get_by_role("button", name="decoder.0.cross, head 2")
    head.focus()
    page.keyboard.press("Space")
    settle(page)
    drop_key, drop_head = "drop_key('*', keys=[1])", "drop_head('decoder.0.cross', heads=[2])"
    assert params(page)["edits"] == f"{drop_key}; {drop_head}"
    assert head.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Undo drop key").click()
    assert params(page)["edits"] == drop_head
    page.get_by_role("button", name="Reset", exact=True).click()
    settle(page)
    assert params(page) == LINK
    assert page.locator("text=Nothing is edited").count() == 1


def test_a_link_restores_everything(page, open_view, explorer):
    edits = {"site": "encoder.1.self", "head": 3, "edits": "uniform('encoder.*')"}
    open_view("what-if", **LINK, **edits)
    answer = explorer.answer("what-if", LINK | edits)
    assert page.locator("p.sentence").inner_text() == answer["sentence"]
    assert page.get_by_role("combobox", name="Head", exact=True).input_value() == "3"
    assert page.get_by_role("checkbox", name="uniform").is_checked()
    assert page.get_by_role("combobox", name="Where").input_value() == "encoder.*"


def test_a_mistake_in_a_link_is_said(page, open_view):
    open_view("what-if", **LINK, edits="uniform('nowhere')")
    assert (
        "site: needs an attention that ran, got 'nowhere'"
        in page.locator("[role=alert]").inner_text()
    )


def test_a_narrow_screen_needs_no_sideways_scrolling(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/what-if")
    settle(page)
    page.wait_for_selector("text=Formula beside measurement")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_language_model_opens_at_what_it_writes_next(page, open_view, explorer):
    body = {"model": "stdlib", "text": "import os\nimport sys\n\nclass "}
    start = explorer.answer("text", body)["start"]
    open_view("what-if", **body)
    assert page.get_by_role("combobox", name="Site").input_value() == start["site"]
    assert page.get_by_role("combobox", name="Head", exact=True).input_value() == str(start["head"])
    rows = page.locator("[aria-label='Predictions per position'] tbody tr")
    assert rows.last.get_attribute("class") == "on"
    assert not set("ĠĊ") & set(page.locator("main").inner_text())
