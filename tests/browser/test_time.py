"""Time in a browser: strips, units, gradients, and the four small models on demand."""

import pytest

from regard.web.explorer.explorer import unpack
from tests.browser.conftest import settle

pytestmark = pytest.mark.browser
LINK = {"model": "phrases-gru", "text": "3 days", "to": "de"}


def test_strips_are_read_with_the_arrow_keys(page, open_view, explorer):
    open_view("time", **LINK)
    strip = page.get_by_role("application").first
    strip.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    shown = float(page.locator(".strip .readout").first.get_attribute("data-value"))
    answer = explorer.answer("time", LINK)
    assert shown == pytest.approx(float(unpack(answer["strips"][0]["values"])[1, 1]))
    page.keyboard.press("Enter")
    page.wait_for_selector("h3:has-text('Unit 1')")
    assert "unit=1" in page.url


def test_a_link_restores_layer_unit_and_output(page, open_view):
    open_view("time", **LINK, cell="decoder.core.0", unit=7, order="mean", position=1)
    assert page.get_by_label("Layer").input_value() == "decoder.core.0"
    assert page.get_by_label("Output").input_value() == "1"
    assert page.locator("h3:has-text('Unit 7')").count() == 1
    assert page.locator("h2:has-text('384 units')").count() == 1
    page.get_by_role("button", name="mean and range").click()
    assert "show=quantiles" in page.url
    assert page.locator(".strip .legend:has-text('90%')").count() == 5


def test_four_models_are_trained_on_demand(page, open_view, explorer):
    open_view("time", **LINK)
    page.get_by_role("button", name="Train the four models").click()
    page.wait_for_selector("h3:has-text('Transformer')", timeout=90_000)
    assert "compare=true" in page.url
    page.get_by_label("Letters").fill("aBcd")
    page.wait_for_selector("text=after 2 letters")
    settle(page)
    answer = explorer.answer("time.compare", {"sequence": "aBcd", "seed": 0})
    shown = [x.get_attribute("data-value") for x in page.locator(".four p [data-value]").all()]
    assert [float(x) for x in shown] == [m["right"][-1] for m in answer["models"]]
    page.get_by_label("Letters").fill("abc")
    page.wait_for_selector("[role=alert]:has-text('exactly one capital letter')")
