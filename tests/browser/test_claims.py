"""The claims view in a browser."""

import pytest

pytestmark = pytest.mark.browser


def test_the_first_claim_is_open_with_its_evidence(page, open_view, explorer):
    open_view("claims")
    answer = explorer.answer("claims.one", {"claim": "A1"})
    article = page.get_by_role("article", name="Claim A1")
    assert answer["statement"] in article.inner_text()
    value = article.locator("td [data-value]").first.get_attribute("data-value")
    assert float(value) == answer["evidence"]["measures"][0]["value"]
    assert article.locator("[data-declared=true]").count() == 1
    assert article.locator("svg.drawing").count() == 1


def test_filters_and_the_open_claim_are_in_the_link(page, open_view):
    open_view("claims", family="C", verdict="false")
    buttons = page.locator(".claims-list button")
    count = buttons.count()
    page.get_by_role("button", name="C10").click()
    page.wait_for_selector("article[aria-label='Claim C10'] [data-found=false]")
    assert "claim=C10" in page.url
    page.reload()
    page.wait_for_selector("article[aria-label='Claim C10'] [data-found=false]")
    assert buttons.count() == count < 20


def test_a_search_narrows_the_list_by_keyboard(page, open_view):
    open_view("claims")
    page.get_by_label("Search").focus()
    page.keyboard.type("sum to 1")
    page.get_by_text("of 162 claims").wait_for()
    assert page.locator(".claims-list button").count() < 30
    page.get_by_label("Search").fill("nothing has this")
    page.get_by_text("Show all claims").click()
    page.get_by_text("162 claims", exact=True).wait_for()


def test_a_question_is_answered_above_the_claims(page, open_view):
    open_view("claims", search="why divide by sqrt(d)")
    answer = page.get_by_role("region", name="Answer")
    assert "Var(q · k) = d" in answer.locator("pre").inner_text()
    assert page.locator(".claims-list button").count() > 0
    page.screenshot(path="/tmp/ask.png")
    answer.get_by_role("button", name="D7").click()
    page.locator("article[aria-label='Claim D7']").wait_for()


def test_a_run_shows_the_verdict_that_it_found(page, open_view):
    open_view("claims", claim="B5")
    page.get_by_role("button", name="Run it again").click()
    page.get_by_text("Run just now").wait_for()
    assert page.locator("[data-found]").get_attribute("data-found") == "false"


@pytest.mark.parametrize("kind", ["Lines", "Bars", "Points", "Maps"])
def test_every_kind_of_picture_is_drawn(page, open_view, explorer, kind):
    names = {"Lines": "C10", "Bars": "F1", "Points": "", "Maps": ""}
    known = [x["id"] for x in explorer.answer("claims", {})["claims"] if not x["trained"]]
    for name in filter(None, [names[kind], *known]):
        evidence = explorer.answer("claims.one", {"claim": name})["evidence"]
        if evidence and evidence["chart"]["kind"] == kind:
            open_view("claims", claim=name)
            page.locator(f"article[aria-label='Claim {name}'] figure svg.drawing").first.wait_for()
            return
    pytest.fail(f"no claim has a picture of kind {kind}")


def test_the_view_fits_a_phone(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/claims?claim=C10")
    page.wait_for_selector("[data-found]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
