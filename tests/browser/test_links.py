"""The link is the state: emptied boxes, choices that Back undoes, names that are not there."""

from urllib.parse import parse_qs, urlparse

import pytest

from browser.conftest import settle

pytestmark = pytest.mark.browser
PHRASE = {"model": "phrases", "text": "3 days", "to": "de"}


def params(page):
    query = urlparse(urlparse(page.url).fragment).query
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}


def head_in_link(page, site, head):
    page.wait_for_function(f"location.hash.includes('site={site}&head={head}')")


@pytest.mark.parametrize("view", ["text", "what-if", "time", "atlas"])
def test_an_emptied_box_stays_empty_and_takes_what_is_typed(page, open_view, view):
    model = "phrases-gru" if view == "time" else "phrases"
    open_view(view, model=model, text="March 5, 2024")
    box = page.get_by_label("Text", exact=True)
    box.fill("")
    page.get_by_text("Type something, or choose an example.").wait_for()
    assert box.input_value() == ""
    page.wait_for_function("location.hash.endsWith('text=')")
    page.reload()
    settle(page)
    assert box.input_value() == params(page)["text"] == ""
    box.press_sequentially("7 hours")
    settle(page)
    assert box.input_value() == params(page)["text"] == "7 hours"


def test_back_undoes_choices_one_by_one_and_stays_on_the_page(page, open_view):
    open_view("text", **PHRASE)
    entries = page.evaluate("history.length")
    for head in (2, 4):
        page.locator(f"g.head[data-site='encoder.0.self'][data-head='{head}']").click()
        head_in_link(page, "encoder.0.self", head)
    page.get_by_role("button", name="Logit lens").click()
    assert page.evaluate("history.length") == entries + 3
    page.go_back()
    page.get_by_role("heading", name="encoder.0.self, head 4").wait_for()
    page.go_back()
    page.get_by_role("heading", name="encoder.0.self, head 2").wait_for()
    page.go_back()
    settle(page)
    assert params(page) == PHRASE
    page.go_forward()
    page.get_by_role("heading", name="encoder.0.self, head 2").wait_for()


def test_one_text_and_one_slider_are_one_step_back(page, open_view):
    open_view("what-if", **PHRASE)
    entries = page.evaluate("history.length")
    page.get_by_label("Text", exact=True).press_sequentially(" ago", delay=30)
    settle(page)
    assert page.evaluate("history.length") == entries + 1
    page.get_by_role("slider", name="scale scores: factor").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight", delay=20)
    settle(page)
    assert page.evaluate("history.length") == entries + 2
    page.go_back()
    settle(page)
    assert "edits" not in params(page)
    page.go_back()
    settle(page)
    assert page.get_by_label("Text", exact=True).input_value() == "3 days"


def test_moving_over_the_atlas_is_no_step_back(page, open_view):
    open_view("atlas", model="demo:1024")
    entries = page.evaluate("history.length")
    page.locator("canvas.atlas-map").focus()
    for key in ("+", "+", "ArrowRight"):
        page.keyboard.press(key)
        page.wait_for_timeout(400)
    assert {"x", "y", "z"} <= params(page).keys()
    assert page.evaluate("history.length") == entries
