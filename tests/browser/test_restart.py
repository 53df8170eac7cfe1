"""A server that stops and starts again: the page says so, and goes on by itself."""

import re

import pytest
from web_server import running

from browser.conftest import settle

pytestmark = pytest.mark.browser
LOST = "The server does not answer; trying again"


def restarted(address=None):
    """The same server, with none of what the old one had in memory."""
    from regard.web.api import create_app
    from regard.web.explorer import Explorer
    from regard.web.explorer.catalog import Catalog

    app = create_app({}, explorer=Explorer(Catalog(["phrases"], device="cpu")))
    return running(app, 0 if address is None else int(address.rpartition(":")[2]))


@pytest.mark.parametrize(
    ("view", "act", "shown"),
    [
        ("text?model=phrases&text=3 days&to=de", ("Text", "4 hours"), "4 Stunden"),
        ("what-if?model=phrases&text=3 days&to=de", ("Text", "4 hours"), "4 Stunden"),
    ],
)
def test_what_failed_is_sent_again_when_the_server_is_back(browser, view, act, shown):
    with restarted() as address:
        page = browser.new_context(base_url=address).new_page()
        page.goto(f"/#/{view}")
        settle(page)
    label, text = act
    page.get_by_label(label, exact=True).fill(text)
    page.get_by_text(LOST).wait_for()
    assert page.get_by_role("button", name="Retry").count() == 1
    with restarted(address):
        page.get_by_text(shown).first.wait_for()
        page.get_by_text(LOST).wait_for(state="detached")
        assert page.locator("main .error").count() == 0
    page.context.close()


def test_the_atlas_goes_on_after_a_restart(browser):
    with restarted() as address:
        page = browser.new_context(base_url=address).new_page()
        page.goto("/#/atlas?model=demo:4096")
        settle(page)
    canvas = page.locator("canvas.atlas-map")
    canvas.focus()
    for _ in range(12):
        page.keyboard.press("+")
    page.get_by_text(LOST).wait_for()
    with restarted(address):
        page.get_by_text(LOST).wait_for(state="detached")
        box = canvas.bounding_box()
        for n in range(40):  # until a single cell is there: its tile came from the new server
            page.mouse.move(box["x"] + 300 + n % 2, box["y"] + 300)
            page.wait_for_timeout(500)
            if page.get_by_text(re.compile("(: weight|hidden by the mask)")).count():
                break
        else:
            raise AssertionError(page.locator(".readout").all_inner_texts())
        assert page.locator("main .error").count() == 0
    page.context.close()
