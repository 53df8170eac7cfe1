"""Lesson in a browser: walked by keyboard alone, linked, changed, saved and printed."""

import pytest

from regard.web.explorer.view_file import write_view
from tests.browser.conftest import settle

pytestmark = pytest.mark.browser
LINK = {"model": "phrases", "text": "March 5, 2024", "to": "de", "site": "decoder.1.cross"}
SCREEN = {"width": 1366, "height": 768}


def title(page):
    return page.locator(".lesson-step h2").inner_text().splitlines()[-1]


def go(page, key, expected):
    page.keyboard.press(key)
    page.wait_for_selector(f".lesson-step[aria-label='{expected}'] h2")
    settle(page)


def press_until(page, script, key="Tab"):
    """Press a key until the focused element passes."""
    for _ in range(60):
        if page.evaluate(f"(({script})(document.activeElement))"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} never reached {script}")


@pytest.mark.parametrize("model", ["phrases", "stdlib"])
def test_a_lesson_is_walked_by_keyboard_alone_and_each_step_is_one_screen(
    new_page, explorer, model
):
    page = new_page(viewport=SCREEN)
    page.goto(f"/#/lesson?model={model}")
    settle(page)
    steps = explorer.answer("lesson", {"model": model})["steps"]
    for n, name in enumerate(steps):
        if n:
            go(page, "ArrowRight", name)
            assert f"step={n}" in page.url
            assert page.evaluate("document.activeElement.tagName") == "H2"
        assert page.locator(".error").count() == 0, name
        assert page.evaluate("document.documentElement.scrollHeight") <= SCREEN["height"], name
    page.keyboard.press("ArrowRight")  # nothing is behind the last one
    go(page, "PageUp", steps[-2])
    go(page, "Home", steps[0])
    go(page, "End", steps[-1])


def test_a_change_and_an_answer_take_keys_only(page, open_view, explorer):
    open_view("lesson", **LINK, step=3)
    answer = explorer.answer("lesson.step", LINK | {"step": 3})["question"]["answer"]
    page.locator("h2").focus()
    press_until(page, "x => x.closest('.lesson-change') && x.innerText === '20'")
    page.keyboard.press("Enter")
    settle(page)
    assert "key=5" in page.url
    bars = page.locator(".lesson-shown [role=list]").first.locator("[role=listitem]")
    shown = [float(x.get_attribute("data-value")) for x in bars.all()]
    row = explorer.answer("lesson.attention", LINK | {"key": 5})["row"]
    assert shown == [x["dot"] for x in row]
    press_until(page, f"x => x.closest('.lesson-question') && x.innerText !== {answer!r}")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lesson-verdict:has-text('Not yet')")
    press_until(page, f"x => x.closest('.lesson-question') && x.innerText === {answer!r}", "Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lesson-verdict:has-text('Right')")


def test_a_number_is_checked_with_two_digits_and_arrows_in_the_box_stay_there(page, open_view):
    open_view("lesson", **LINK, step=4)
    box = page.get_by_label("Your answer")
    for given, verdict in (("0.18", "Right"), ("0,177", "Right"), ("0.2", "Not yet"), ("x", "Not")):
        box.fill(given)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        page.wait_for_selector(f".lesson-verdict:has-text('{verdict}')")
    page.get_by_role("button", name="Show the answer").click()
    page.wait_for_selector(".lesson-verdict:has-text('0.1768')")
    assert title(page) == "Scale"


def test_the_temperature_changes_the_weights(page, open_view, explorer):
    open_view("lesson", **LINK, step=6)
    page.get_by_role("button", name="0.25", exact=True).click()
    settle(page)
    assert "value=0.25" in page.url
    bars = page.locator(".lesson-shown [role=list]").nth(1).locator("[role=listitem]")
    edits = "scale_scores('decoder.1.cross', factor=0.25)"
    here = explorer.answer("lesson.attention", LINK)  # the default cell is that of the model as is
    at = {name: here[name] for name in ("head", "query", "key")}
    row = explorer.answer("lesson.attention", LINK | at | {"edits": edits})["row"]
    assert [float(x.get_attribute("data-value")) for x in bars.all()] == [x["weight"] for x in row]


def test_a_saved_lesson_has_every_step_and_every_change(new_page, explorer, tmp_path):
    file = write_view(explorer, "lesson", LINK, tmp_path / "lesson.html")
    page = new_page(viewport=SCREEN, offline=True)
    page.goto(file.as_uri())
    settle(page)
    for name in explorer.answer("lesson", LINK)["steps"][1:]:
        go(page, "ArrowRight", name)
        change = page.locator(".lesson-change button").first
        if change.count():
            change.click()
            settle(page)
        assert page.locator(".error").count() == 0, name


def test_the_handout_has_all_steps_with_their_questions_and_no_answers(page, open_view, explorer):
    open_view("lesson", **LINK)
    page.get_by_role("button", name="Handout").click()
    steps = explorer.answer("lesson", LINK)["steps"]
    page.wait_for_function(f"document.querySelectorAll('.lesson-step').length === {len(steps)}")
    settle(page)
    assert page.locator(".lesson-blank").count() == len(steps)
    page.emulate_media(media="print")
    assert not page.locator(".lesson-head").is_visible()
    assert not page.locator(".lesson-change").first.is_visible()
    assert page.locator(".lesson-formula").first.is_visible()


def test_html_of_a_lesson_is_shown_as_text_and_runs_nothing(new_page, tmp_path):
    from regard.web.explorer import Explorer
    from regard.web.explorer.catalog import Catalog

    nasty = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"
    lesson = tmp_path / "nasty.md"
    block = f"```regard\nshow: text output title={nasty.split('>')[0].replace(' ', '')!r}\n```"
    lesson.write_text(f"# {nasty}\n\n## {nasty}\n\n{nasty} **{nasty}**\n\n{block}", "utf-8")
    explorer = Explorer(Catalog(["phrases"], device="cpu"), lessons=lesson)
    link = {"lesson": "nasty", "model": "phrases", "text": "3 days", "to": "de"}
    page = new_page()
    page.goto(write_view(explorer, "lesson", link, tmp_path / "nasty.html").as_uri())
    settle(page)
    assert title(page) == nasty
    assert page.locator(".lesson-text p").first.inner_text() == f"{nasty} {nasty}"
    assert page.locator(".lesson img, .lesson script").count() == 0
    assert page.evaluate("window.hit") is None


def test_what_was_cancelled_says_so_and_can_be_sent_again(page):
    page.goto("/#/lesson?lesson=linear-attention")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    page.get_by_role("button", name="Retry").click()
    page.locator(".activity progress").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    assert page.get_by_text("Computing …").count() == 0
