"""The work view in a browser."""

import json

import pytest

pytestmark = pytest.mark.browser


def test_the_first_thing_is_a_solved_problem(page, open_view, explorer):
    open_view("work")
    answer = explorer.answer("work", {})
    assert page.locator("[data-step]").count() == len(answer["steps"])
    scores = page.locator("[data-step=S]")
    assert scores.locator("math mtd").count() >= 9
    names = page.locator("math").first.evaluate("x => x.namespaceURI")
    assert names == "http://www.w3.org/1998/Math/MathML"


def test_a_changed_number_changes_the_solution_and_the_link(page, open_view):
    open_view("work", problem="self-attention")
    before = page.locator("[data-step=S]").inner_text()
    page.get_by_label("X, row 1, column 1", exact=True).fill("√2/3")
    page.wait_for_url("**given=**")
    page.locator("[data-step=S] msqrt").first.wait_for()
    after = page.locator("[data-step=S]").inner_text()
    assert after != before
    page.reload()
    page.locator("[data-step=S] msqrt").first.wait_for()
    assert page.get_by_label("X, row 1, column 1", exact=True).input_value() == "√2/3"


def test_a_mistake_stands_at_its_field(page, open_view):
    open_view("work", problem="self-attention")
    field = page.get_by_label("X, row 2, column 1", exact=True)
    field.fill("<b>no</b>")
    error = page.locator(".work-matrix .error")
    error.wait_for()
    assert error.inner_text().startswith("X (2,1): needs")
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator("main b").count() == 0
    page.get_by_role("button", name="Original numbers").click()
    error.wait_for(state="detached")


def test_answers_are_checked_step_by_step(page, open_view):
    open_view("work", problem="self-attention", mode="solve")
    assert page.locator("[data-step=S] .step-results").count() == 0  # the result is hidden
    given = {"X": [["1", "0"], ["0", "2"]]}
    answers = {"S": [["1", "0"], ["0", "5"]]}
    link = {"given": json.dumps(given), "options": json.dumps({"scale": "1"})}
    open_view("work", problem="self-attention", mode="solve", answers=json.dumps(answers), **link)
    page.locator("[data-step=S][data-verdict=wrong]").wait_for()
    page.get_by_label("S, row 2, column 2", exact=True).fill("4")
    page.locator("[data-step=S][data-verdict=right]").wait_for()
    page.locator("[data-summary=right]").wait_for()
    page.get_by_label("S, row 2, column 2", exact=True).fill("4+")
    page.locator("[data-step=S] .error").wait_for()


def test_another_exercise_and_its_text(page, open_view):
    open_view("work", family="rnn")
    page.get_by_label("As text").select_option("toml")
    text = page.locator("textarea")
    text.wait_for()
    assert text.input_value().startswith("# rnn-1-0-1: Find")
    page.get_by_role("button", name="Another one").click()
    page.wait_for_url("**seed=1")
    for _ in range(50):
        if text.input_value().startswith("# rnn-1-1-1: Find"):
            return
        page.wait_for_timeout(100)
    pytest.fail("the text stayed that of the first exercise")


def test_the_view_fits_a_phone(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/work")
    page.wait_for_selector("[data-step]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
