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
        page.locator(f"[data-site='encoder.0.self'][data-head='{head}']").click()
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


@pytest.mark.parametrize(
    ("view", "link", "note"),
    [
        ("text", {"model": "gpt-9"}, "no model “gpt-9” here; "),
        ("text", PHRASE | {"to": "xx"}, "no language “xx” here; German is shown"),
        ("text", PHRASE | {"site": "nowhere"}, "no attention “nowhere” here; decoder."),
        ("text", PHRASE | {"head": 99}, "with the number “99” here; head "),
        ("text", PHRASE | {"query": 99, "key": 0}, "no query with the number “99” here"),
        ("what-if", {"model": "gpt-9"}, "no model “gpt-9” here; "),
        ("time", {"model": "phrases"}, "no model “phrases” here; phrases-gru is shown"),
        ("atlas", {"model": "gpt-9"}, "no model “gpt-9” here; the synthetic map is shown"),
        ("image", {"model": "gpt-9"}, "no model “gpt-9” here; glyphs is shown"),
        ("image", {"site": "nowhere", "head": 99}, "no head “99” here"),
        ("sound", {"model": "gpt-9"}, "no model “gpt-9” here; morse is shown"),
    ],
)
def test_what_a_link_names_and_is_not_there_is_said(page, open_view, view, link, note):
    open_view(view, **link)
    page.locator("main [role=status]", has_text=note).first.wait_for()


def test_what_a_link_names_and_is_there_needs_no_note(page, open_view):
    open_view("text", **PHRASE, site="encoder.0.self", head=1, query=1, key=0)
    assert page.get_by_text("There is no").count() == 0
    open_view("image")
    assert page.get_by_text("There is no").count() == 0


@pytest.mark.parametrize(
    ("view", "link", "shown"),
    [
        ("text", {"site": "decoder.1.cross", "head": "1", "query": "1", "key": "0"}, "Arithmetic"),
        ("text", {"key": "1"}, "Influence"),
        ("text", {"tab": "lens", "position": "1"}, "Detail"),
        ("text", {"tab": "parts", "by": "head"}, "Detail"),
        ("text", {"tab": "compare", "vs": "text", "other_text": "4 days"}, "Detail"),
        ("what-if", {"where": "encoder.*", "only": "1"}, None),
        (
            "work",
            {
                "mode": "solve",
                "answers": '{"S": [["1", "2", "3"], ["1", "2", "3"], ["1", "2", "3"]]}',
            },
            "Solution",
        ),
        ("atlas", {"query": "2", "key": "1"}, "Arithmetic"),
    ],
)
def test_the_command_line_writes_what_the_link_shows(
    explorer, open_view, new_page, tmp_path, view, link, shown
):
    from regard.web.explorer.view_file import write_view

    open_view("cost")  # the server is warm: two threads cannot run one model
    given = link if view == "work" else PHRASE | link
    file = write_view(explorer, view, given, tmp_path / "view.html")
    page = new_page(offline=True)
    page.goto(file.as_uri())
    settle(page)
    assert page.locator("main .error").all_inner_texts() == []
    if shown is not None:
        page.locator(
            f"section[aria-label='{shown}'] :is(.steps math, svg.drawing, td)"
        ).first.wait_for()
