"""The cost view in a browser."""

import pytest

pytestmark = pytest.mark.browser


def facts(page):
    found = page.locator(".cost-facts [data-value]").all()
    return {x.get_attribute("data-name"): int(x.get_attribute("data-value") or 0) for x in found}


def test_what_is_shown_is_what_the_query_answers(page, open_view, explorer):
    open_view("cost", model="translator_base", source=300, dim=256)
    answer = explorer.answer("cost", {"model": "translator_base", "source": 300, "dim": 256})
    assert facts(page)["parameters"] == answer["totals"]["parameters"]
    assert facts(page)["multiply-adds"] == answer["totals"]["multiply_adds"]
    cells = page.locator("table tr:first-child td [data-value]").all()
    assert int(cells[0].get_attribute("data-value")) == answer["totals"]["parameters"]
    assert "From 171 tokens on" in page.locator("main").inner_text()


def test_a_slider_moves_by_keyboard_and_the_link_restores_it(page, open_view, explorer):
    open_view("cost", model="language_base")
    before = facts(page)
    page.get_by_role("slider", name="Layers L").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**layers=16")
    direct = explorer.answer("cost", {"model": "language_base", "layers": 16})
    page.wait_for_selector(f"[data-value='{direct['totals']['parameters']}']")
    after = facts(page)
    assert after["parameters"] > before["parameters"]
    page.reload()
    page.wait_for_selector(".cost-facts")
    assert facts(page) == after


def test_heads_follow_a_width_that_they_do_not_divide(page, open_view):
    open_view("cost", model="language_base")  # 12 heads of width 768
    page.get_by_role("slider", name="Width d").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**dim=1024&heads=8")
    page.wait_for_load_state("networkidle")
    assert page.locator(".error").count() == 0


def test_the_view_fits_a_phone(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/cost")
    page.wait_for_selector(".cost-facts")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
